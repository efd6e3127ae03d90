"""What SamplingParams(structured=...) accepts, and answers that follow it from end to end."""

import gc
import json
import re

import pytest
from support.processes import processes_of_this_one, wait_for_end

from outrider import LLM, SamplingParams
from outrider.cli.main import run
from outrider.config.draft_config import DraftConfig
from outrider.errors import RequestError
from outrider.frontend.sampling_params import override
from outrider.frontend.structured_params import parse_structured

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GOOD = [
    ("json_object", "json_schema"),
    ({"json_object": True}, "json_schema"),
    ({"json": SCHEMA}, "json_schema"),
    ({"json": json.dumps(SCHEMA)}, "json_schema"),
    ({"regex": "[ab]+"}, "regex"),
    ({"choice": ["yes", "no"]}, "ebnf"),
    ({"grammar": 'root ::= "a"', "json": None}, "ebnf"),
    ({"structural_tag": {"type": "structural_tag"}}, "structural_tag"),
    (None, "none"),
]
WRONG = [
    ("json", 'use "json_object"'),
    ([], "structured cannot be"),
    ({}, "must have one key"),
    ({"json": SCHEMA, "regex": "a"}, "must have one key"),
    ({"yaml": "a"}, "unknown key 'yaml'"),
    ({"json": "{"}, "is not JSON"),
    ({"json": 7}, "must be a JSON object"),
    ({"json": {"a": {1, 2}}}, "is not JSON"),
    ({"json_object": False}, "must be true"),
    ({"regex": ""}, "non-empty string"),
    ({"choice": "yes"}, "list of texts"),
    ({"choice": []}, "list of texts"),
    ({"choice": ["a", 7]}, "non-empty string"),
    ({"choice": ["a"] * 2000}, "at most 1024"),
    ({"regex": "a" * 5000}, "at most 4096"),
    ({"regex": "(" * 70}, "64 levels"),
]


@pytest.mark.parametrize(("asked", "kind"), GOOD, ids=lambda value: str(value)[:40])
def test_every_way_to_ask_becomes_one_grammar(asked, kind):
    assert parse_structured(asked).kind == kind
    SamplingParams(structured=asked)


@pytest.mark.parametrize(("asked", "reason"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_form_is_refused_with_one_short_line(asked, reason):
    with pytest.raises(RequestError, match=reason) as refusal:
        SamplingParams(structured=asked)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_vllms_name_means_the_same():
    params = override(SamplingParams(), {"structured_outputs": {"choice": ["a"]}})
    assert params == SamplingParams(structured={"choice": ["a"]})


def test_a_choice_is_quoted_whatever_it_holds():
    text = parse_structured({"choice": ['a"b', "c\\d", "\n", "\u00e9"]}).text
    assert text.isascii()
    assert text.count("|") == 3
    assert "\n" not in text


@pytest.fixture(scope="module")
def llm(model_folder):
    pytest.importorskip("xgrammar")
    return LLM(model_folder, draft=DraftConfig(drafter="ngram", adaptive=False))


def answer(llm, **asked):
    asked = {"max_tokens": 40, "seed": 5, **asked}
    return llm.generate("the cat", SamplingParams(**asked), use_tqdm=False)[0].outputs[0]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_has_the_form_that_was_asked_for(llm, temperature):
    chosen = answer(llm, temperature=temperature, structured={"choice": ["hello", "good day!"]})
    assert chosen.text in ("hello", "good day!")
    assert chosen.finish_reason == "stop"
    date = answer(llm, temperature=temperature, structured={"regex": "[0-9]{2}\\.[a-z]{3}, the"})
    assert re.fullmatch(r"[0-9]{2}\.[a-z]{3}, the", date.text)


def test_speculation_changes_no_token_of_it(llm):
    form = {"regex": "((the|cat|dog) ){6}[0-9]"}
    with_drafts = answer(llm, structured=form)
    without = answer(llm, structured=form, speculation="off")
    assert with_drafts.acceptance.drafted
    assert with_drafts.token_ids == without.token_ids


def test_ignored_ends_follow_the_answer_to_its_limit(llm):
    output = answer(llm, structured={"choice": ["hello"]}, ignore_eos=True, max_tokens=12)
    assert (output.text, output.finish_reason, len(output.token_ids)) == ("hello", "length", 12)


def test_all_outputs_of_a_request_follow_it(llm):
    params = SamplingParams(n=3, seed=1, max_tokens=20, structured={"choice": ["a", "b", "cd"]})
    outputs = llm.generate("the cat", params, use_tqdm=False)[0].outputs
    assert {output.text for output in outputs} <= {"a", "b", "cd"}


def test_a_bad_grammar_is_refused_before_anything_runs(llm):
    params = [SamplingParams(), SamplingParams(structured={"json": {"type": "objct"}})]
    with pytest.raises(RequestError, match="prompt 1: the JSON schema is refused"):
        llm.generate(["a", "b"], params, use_tqdm=False)
    assert llm.frontend.is_idle


def test_a_model_without_a_tokenizer_refuses_a_form(ids_only_folder):
    llm = LLM(ids_only_folder, draft="none")
    with pytest.raises(RequestError, match="needs a tokenizer"):
        llm.generate([[1, 2]], SamplingParams(structured={"choice": ["a"]}), use_tqdm=False)


@pytest.mark.slow
def test_the_command_line_takes_a_form(model_folder, tmp_path, capsys):
    pytest.importorskip("xgrammar")
    base = ["generate", "the cat", "--model", str(model_folder), "--raw", "--draft", "none"]
    assert run([*base, "--choice", "yes", "--choice", "no", "--seed", "1"]) == 0
    assert capsys.readouterr().out.strip() in ("yes", "no")
    grammar = tmp_path / "word.ebnf"
    grammar.write_text('root ::= "the " [a-c] [a-c]')
    assert run([*base, "--grammar", str(grammar), "--seed", "1"]) == 0
    assert re.fullmatch("the [a-c][a-c]", capsys.readouterr().out.strip())


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--regex", "a", "--choice", "b"], "one form"),
        (["--json-schema", "/no/such/file"], "--json-schema"),
        (["--regex", ""], "non-empty"),
    ],
)
def test_wrong_flags_fail_before_a_model_is_loaded(flags, reason, capsys):
    assert run(["generate", "the cat", "--model", "./no/such/folder", *flags]) == 1
    assert reason in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_that_is_dropped_leaves_no_process(model_folder):
    pytest.importorskip("xgrammar")
    before = set(processes_of_this_one())
    llm = LLM(model_folder, draft="none")
    answer(llm, structured={"regex": "[ab]{3}"})
    started = set(processes_of_this_one()) - before
    assert len(started) == 3  # compiler, fork server, matcher
    del llm
    gc.collect()
    for pid in started:
        wait_for_end(pid)
