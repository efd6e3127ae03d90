"""`outrider bench accuracy` on a tiny model: which answers are right, and what the exit code is."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from outrider.bench.accuracy.accuracy_report import (
    AccuracyAnswer,
    AccuracyReport,
    AccuracyRun,
    describe_accuracy,
)
from outrider.bench.accuracy.accuracy_task import (
    OWN_TASK,
    AccuracyTask,
    Problem,
    choose_task,
    last_number,
    read_problems,
)
from outrider.cli.main import run
from outrider.errors import ConfigError
from outrider.frontend.outputs import Acceptance
from outrider.ops.tree.verify import verify
from outrider.runtime.build_runner import assemble_runner

PROBLEM = Problem(question="two and two?", answer="4", expected=Decimal(4))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("6 * 7 = 42.\n#### 42", "42"),
        ("That is $1,234.50.", "1234.5"),
        ("10-5 leaves 5", "5"),
        ("It is -3 degrees", "-3"),
        ("about .5 of it", "0.5"),
        ("\\boxed{18.00}", "18"),
        ("The 3 of them, then.", "3"),
    ],
)
def test_the_last_number_of_a_text_counts(text, number):
    assert last_number(text) == Decimal(number)


def test_a_text_without_a_number_is_a_wrong_answer():
    assert last_number("none at all") is None
    assert not answer_of("none at all").is_right
    assert answer_of("4.0").is_right


def answer_of(text, tokens=(1, 2)):
    acceptance = Acceptance(rounds=4, drafted=4, kept_per_position=[2])
    return AccuracyAnswer(
        problem=PROBLEM, text=text, tokens=tokens, is_cut=False, acceptance=acceptance
    )


def test_equal_numbers_from_other_tokens_count_as_changed():
    plain = AccuracyRun(drafter="none", answers=(answer_of("4"), answer_of("5")), duration_s=1.0)
    other = replace(plain, drafter="d", answers=(answer_of("4"), answer_of("5", (1, 3))))
    report = AccuracyReport(
        model="m",
        task=AccuracyTask(name="t", problems=(PROBLEM, PROBLEM), examples=()),
        temperature=0.0,
        max_tokens=2,
        plain=plain,
        drafted=(plain,),
    )
    assert report.is_equal
    changed = replace(report, drafted=(other,))
    assert not changed.is_equal
    found = describe_accuracy(changed)["runs"][1]
    assert found["answers_that_differ"] == [2]
    assert (found["right"], found["accuracy"], found["accept_length"]) == (1, 0.5, 1.5)
    assert found["standard_error"] == pytest.approx(0.3536, abs=1e-4)


def test_examples_of_the_task_are_not_asked(tmp_path):
    path = tmp_path / "t.jsonl"
    lines = [{"question": f"q{i}", "answer": i} for i in range(5)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = choose_task(path, examples=None, shots=2, limit=2)
    assert [each.question for each in task.examples] == ["q0", "q1"]
    assert [each.question for each in task.problems] == ["q2", "q3"]
    apart = choose_task(path, examples=OWN_TASK, shots=3, limit=0)
    assert (len(apart.problems), len(apart.examples)) == (5, 3)
    with pytest.raises(ConfigError, match="--shots N"):
        choose_task(path, examples=OWN_TASK, shots=0, limit=0)
    with pytest.raises(ConfigError, match="no problem to ask"):
        choose_task(path, examples=None, shots=5, limit=0)
    with pytest.raises(ConfigError, match="5 problems, and --shots wants 6"):
        choose_task(path, examples=None, shots=6, limit=0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1", "not JSON"),
        ("7", '"question"'),
        ('{"question": "", "answer": "1"}', '"question"'),
        ('{"question": "a", "answer": true}', '"question"'),
        ('{"question": "a", "answer": "one"}', "no number in its answer"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path, line, reason):
    path = tmp_path / "t.jsonl"
    path.write_text('{"question": "a", "answer": "1"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=f"line 2.*{reason}"):
        read_problems(path, "--task")


def test_our_own_task_can_be_read():
    problems = read_problems(OWN_TASK, "--task")
    assert len(problems) == 24
    assert len({problem.question for problem in problems}) == 24


@pytest.fixture
def command(tiny_folder, tmp_path):
    path = tmp_path / "short.jsonl"
    lines = [{"question": each, "answer": 1} for each in ("abc", "bcd", "cde")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    usual = ["--task", str(path), "--model", str(tiny_folder), "--device", "cpu"]
    sizes = ["--limit", "2", "--max-tokens", "6", "--steps", "2"]
    return ["bench", "accuracy", *usual, *sizes, "--no-adaptive", "--no-check-draft"]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("shots", ["0", "1"])
def test_drafts_change_no_answer_and_all_numbers_are_written(
    command, tiny_folder, tmp_path, capsys, shots
):
    target = tmp_path / "out.json"
    flags = ["--draft", str(tiny_folder), "--shots", shots, "--json", str(target)]
    assert run([*command, *flags]) == 0
    assert "all 2 answers are the same with and without drafts" in capsys.readouterr().out
    found = json.loads(target.read_text())
    plain, drafted = found["runs"]
    assert (found["is_equal"], found["examples"]) == (True, int(shots))
    assert (plain["accept_length"], drafted["answers"]) == (1.0, plain["answers"])
    assert drafted["accept_length"] > 1.5  # the target drafts for itself
    assert drafted["drafted"] > plain["drafted"] == 0


def test_equal_answers_prove_nothing_if_nothing_was_drafted(command, capsys):
    flags = ["--draft", "ngram", "--max-tokens", "1"]
    assert run([*command, *flags]) == 1  # the first token of an answer needs no round
    told = capsys.readouterr().out
    assert "nothing was drafted with ngram" in told
    assert "are the same" not in told


@pytest.mark.slow
def test_an_answer_that_drafts_change_ends_with_exit_code_1(
    command, tiny_folder, monkeypatch, capsys
):
    def mistaken(tree, choice, most_emitted):
        result = verify(tree, choice, most_emitted)
        if tree.tokens.shape[1] == 1:
            return result
        return replace(result, emitted=(result.emitted + 1) % 50)

    monkeypatch.setitem(assemble_runner.__kwdefaults__, "verifier", mistaken)
    assert run([*command, "--draft", str(tiny_folder)]) == 1
    assert "answers that drafts changed" in capsys.readouterr().out


@pytest.mark.slow
def test_without_a_drafter_plain_decoding_runs_alone(command, capsys):
    assert run([*command, "--draft", "none"]) == 0
    assert "plain decoding ran alone" in capsys.readouterr().out
