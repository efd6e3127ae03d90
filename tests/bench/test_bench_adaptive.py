"""`outrider bench adaptive` on a tiny model, and how its ratios follow from rounds."""

import json
from pathlib import Path

import pytest

from outrider.bench.adaptive.adaptive_args import choose_texts
from outrider.bench.adaptive.run_adaptive import in_turn, warm_rungs
from outrider.bench.adaptive.timed_round import AdaptiveCell, RoundTime, TimedRound
from outrider.bench.churn.churn_args import ChurnPlace
from outrider.bench.churn.churn_run import ChurnTokens
from outrider.bench.churn.observed_runner import ObservedRunner
from outrider.bench.shared_target import build_runner, load_shared_draft, load_shared_target
from outrider.cli.main import run
from outrider.config.draft_config import DraftConfig
from outrider.errors import ConfigError

TOKENS = ChurnTokens(emitted=4, rounds=3, drafted=2, accepted=1)


class StoredBatches(ObservedRunner):
    """Stores the batches that it passes on."""

    def __init__(self, runner):
        super().__init__(runner)
        self.batches = []

    def submit(self, batch):
        self.batches.append(batch)
        return super().submit(batch)


def cell_of(seconds, answers=()):
    """A cell of these (way, start, number): seconds; answers by way, all equal by default."""
    rounds = [
        TimedRound(
            way=way,
            start=start,
            number=number,
            time=RoundTime(seconds=each, cpu_s=2 * each),
            tokens=TOKENS,
            answers=(dict(answers).get(way, (1, 2)),),
        )
        for (way, start, number), each in seconds.items()
    ]
    return AdaptiveCell(rows=1, text="hard", temperature=1.6, rounds=tuple(rounds))


SECONDS = {
    ("plain", 0, 0): 9.0,
    ("adaptive", 0, 0): 10.0,
    ("plain", 1, 0): 11.0,
    ("adaptive", 1, 0): 10.0,
    ("plain", 0, 1): 8.0,
    ("adaptive", 0, 1): 10.0,
    ("2 drafts", 0, 0): 6.0,
}


def test_a_round_is_compared_with_the_plain_one_beside_it():
    cell = cell_of(SECONDS)
    assert cell.ratios(is_first=True) == [0.9, 1.1]
    assert cell.first == pytest.approx(1.0)
    assert cell.later == pytest.approx(0.8)
    assert cell.cpu == pytest.approx(28 / 30)
    assert cell_of({key: each for key, each in SECONDS.items() if key[2] == 0}).later is None


def test_the_best_way_may_be_a_fixed_budget_or_plain_decoding():
    assert cell_of(SECONDS).best_way == "2 drafts"
    assert cell_of(SECONDS).to_best == pytest.approx(0.6)
    assert cell_of(SECONDS | {("2 drafts", 0, 0): 12.0}).best_way == "plain"


def test_answers_that_differ_from_plain_decoding_are_counted():
    assert cell_of(SECONDS).num_different == 0
    assert cell_of(SECONDS, {"2 drafts": (1, 3)}).num_different == 1


def test_a_warm_up_runs_every_rung_of_adaptive_drafting_alone_and_shared(tiny_folder: Path):
    place = ChurnPlace(dtype="float32", device="cpu")
    target = load_shared_target(tiny_folder, place, context=120)
    draft = DraftConfig(drafter="ngram", steps=4, topk=1, nodes=5, adaptive=True)
    runner, facts = build_runner(target, load_shared_draft(target, draft), rows=5)
    stored = StoredBatches(runner)
    warm_rungs(stored, facts, (3, 4) * 20, rows=5)
    rounds = [batch.decodes for batch in stored.batches if len(batch.decodes) == 5]
    drafts = [each.most_drafts // 5 for each in rounds]  # of a row on average
    assert {0, 1, 2, 4} <= set(drafts)
    deepest = [max(budget.steps for budget in each.budgets) for each in rounds]
    assert (2, 3) in zip(drafts, deepest, strict=True)  # rows share drafts of larger trees
    new = [each for batch in stored.batches for each in batch.admissions]
    assert {each.sampling.temperature for each in new} == {0.0, 1.0}


def test_ways_run_forwards_and_backwards_in_turn():
    orders = [list(in_turn(["plain", "adaptive", "2 drafts"], turn=turn)) for turn in range(3)]
    assert orders[0] == orders[2] == orders[1][::-1]


def test_a_temperature_is_that_of_the_texts_unless_one_is_given():
    own = choose_texts("easy,hard,easy", (), temperature=None)
    assert [(each.name, each.temperature) for each in own] == [("easy", 0.0), ("hard", 1.6)]
    mixed, easy = choose_texts("mixed,easy", (), temperature=0.5)
    assert mixed.temperature == easy.temperature == 0.5
    assert set(easy.prompts) < set(mixed.prompts)
    is_easy = [text in easy.prompts for text in mixed.prompts]
    assert sum(is_easy[:5]) == 1  # a prompt of each of the five kinds, then the next
    with pytest.raises(ConfigError, match="choose from easy, mixed, hard"):
        choose_texts("soft", (), temperature=None)


@pytest.mark.slow
def test_every_way_answers_all_rounds_of_every_start(tiny_folder: Path, tmp_path, capsys):
    target = tmp_path / "out.json"
    load = ["--rows", "2", "--texts", "hard", "--max-tokens", "4", "--starts", "2", "--threads=1"]
    flags = ["--model", str(tiny_folder), "--draft", "ngram", *load]
    assert run(["bench", "adaptive", *flags, "--json", str(target)]) == 0
    shown, (cell,) = capsys.readouterr(), json.loads(target.read_text())["cells"]
    ways = {each["way"] for each in cell["rounds"]}
    assert {"plain", "adaptive", "7 drafts"} <= ways
    assert len(cell["rounds"]) == len(ways) * 2 * 2
    assert {each["tokens"]["emitted"] for each in cell["rounds"]} == {2 * 4}
    assert cell["num_different"] == 0
    first, second = ([each["way"] for each in cell["rounds"] if each["start"] == n] for n in (0, 1))
    assert first[: len(ways)] == second[: len(ways)][::-1]
    assert "hard, 2 rows, start 2 of 2" in shown.err
    table = shown.out[shown.out.index(" text") :].splitlines()
    assert max(map(len, table)) <= 100


WRONG = [
    (["--texts", "soft"], "choose from easy, mixed, hard"),
    (["--rows", "0"], "such as 1,8,32"),
    (["--draft", "none"], "nothing drafts"),
    (["--dtype", "int3"], "int8"),
]


@pytest.mark.parametrize(("flags", "reason"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_flag_is_answered_with_one_line(flags, reason, capsys, smollm2_folder):
    assert run(["bench", "adaptive", *flags]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert reason in shown.err
