"""Speculation as users meet it: it changes the speed and the acceptance, and nothing else."""

import json

import pytest
from support.heads import write_head

from outrider import LLM, SamplingParams
from outrider.cli.main import run
from outrider.errors import ConfigError, RequestError
from outrider.frontend.speculation_params import parse_speculation
from outrider.models.model_config import parse_config, read_config
from outrider.wire.draft_budget import PLAIN, UNBOUNDED, Budget

PROMPTS = ["the rider", [5, 6, 7], "goes ahead of the party", [9] * 20]
WARPED = {
    "temperature": 1.2,
    "top_k": 30,
    "top_p": 0.9,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.1,
    "logit_bias": {5: 2.0, 9: -3.0},
    "min_tokens": 4,
}
SAMPLINGS = {"greedy": {"temperature": 0}, "sampled": {"seed": 3}, "warped": {"seed": 8, **WARPED}}
TREES = [{"steps": 3}, {"steps": 3, "topk": 3, "nodes": 8}, {"nodes": 1}]


@pytest.fixture(scope="module")
def plain(model_folder):
    return LLM(model_folder, draft="none", enable_prefix_caching=False)


@pytest.fixture(scope="module")
def tree(model_folder, draft_folder):
    sizes = {"steps": 3, "topk": 3, "nodes": 8}
    return LLM(
        model_folder, draft=draft_folder, adaptive=False, enable_prefix_caching=False, **sizes
    )


def seen(outputs):
    """Everything a user may compare."""
    return [
        (each.text, each.token_ids, each.finish_reason, each.stop_reason, output.usage)
        for output in outputs
        for each in output.outputs
    ]


def answers(llm, prompts, params):
    return [seen(llm.generate([prompt], params, use_tqdm=False)) for prompt in prompts]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("sizes", TREES, ids=str)
def test_a_draft_model_changes_no_token(model_folder, draft_folder, plain, sampling, sizes):
    drafted = LLM(model_folder, draft=draft_folder, adaptive=False, **sizes)
    params = SamplingParams(max_tokens=12, ignore_eos=True, **SAMPLINGS[sampling])
    ours = drafted.generate(PROMPTS, params, use_tqdm=False)
    assert [each[:4] for each in seen(ours)] == [
        each[:4] for each in seen(plain.generate(PROMPTS, params, use_tqdm=False))
    ]
    kept = sum(output.outputs[0].acceptance.kept for output in ours)
    assert kept > 0 if drafted_nodes(ours) else kept == 0


def drafted_nodes(outputs):
    return sum(output.outputs[0].acceptance.drafted for output in outputs)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", ["ngram", "eagle", "eagle3"])
def test_no_other_drafter_does_either(model_folder, plain, tmp_path, drafter, sampling):
    name = drafter if drafter == "ngram" else a_head(tmp_path, model_folder, drafter)
    drafted = LLM(model_folder, draft=name, adaptive=False, steps=3, topk=2, nodes=6)
    params = SamplingParams(max_tokens=12, ignore_eos=True, **SAMPLINGS[sampling])
    ours, theirs = (
        [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]
        for llm in (drafted, plain)
    )
    assert ours == theirs


def a_head(folder, model_folder, algorithm):
    flags = {"eagle": {"dialect": "safeailab"}, "eagle3": {"layers": (0, 1, 2)}}[algorithm]
    return write_head(folder, read_config(model_folder), algorithm=algorithm, **flags)


def test_requests_with_budgets_of_their_own_share_a_batch(plain, tree):
    budgets = [None, "off", False, {"steps": 1}, {"topk": 1}, {"nodes": 3}, {"steps": 2, "topk": 2}]
    shared = {"max_tokens": 12, "ignore_eos": True, "seed": 4}
    params = [SamplingParams(speculation=budget, **shared) for budget in budgets]
    prompts = [[5, 6, 7 + place] for place in range(len(budgets))]
    outputs = tree.generate(prompts, params, use_tqdm=False)
    expected = plain.generate(prompts, SamplingParams(**shared), use_tqdm=False)
    tokens = [output.outputs[0].token_ids for output in outputs]
    assert tokens == [output.outputs[0].token_ids for output in expected]
    accepted = [output.outputs[0].acceptance for output in outputs]
    assert [each.drafted > 0 for each in accepted] == [True, False, False, True, True, True, True]
    assert len(accepted[3].kept_per_position) <= 1  # one step deep
    for each, most in zip(accepted, (7, 0, 0, 3, 3, 2, 6), strict=True):
        assert each.drafted <= most * each.rounds


def test_acceptance_adds_up(tree):
    params = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0)
    (output,) = tree.generate("the rider", params, use_tqdm=False)
    acceptance = output.outputs[0].acceptance
    assert acceptance.kept == sum(acceptance.kept_per_position)
    assert acceptance.kept_per_position == sorted(acceptance.kept_per_position, reverse=True)
    assert acceptance.accept_length == 1 + acceptance.kept / acceptance.rounds
    # The prompt gave one token, each round its kept drafts and one more; the end may cut some off.
    emitted = 1 + acceptance.rounds + acceptance.kept
    assert 20 <= emitted <= 20 + 3


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_the_last_token_may_lie_anywhere_in_a_round(plain, tree, max_tokens):
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0)
    assert answers(tree, PROMPTS[:2], params) == answers(plain, PROMPTS[:2], params)


@pytest.mark.parametrize("place", range(2, 7))
def test_a_stop_may_lie_anywhere_in_a_round(plain, tree, place):
    whole = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0)
    (completion,) = plain.generate("the rider", whole, use_tqdm=False)[0].outputs
    for stop in (
        {"stop": [completion.text[place : place + 2]]},
        {"stop_token_ids": [completion.token_ids[place]]},
        {"stop": [completion.text[place]], "include_stop_str_in_output": True, "min_tokens": 2},
    ):
        params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0, **stop)
        ours, theirs = (answers(llm, ["the rider"], params) for llm in (tree, plain))
        assert ours == theirs
        assert ours[0][0][2] == "stop"


@pytest.mark.parametrize("seed", range(4))
def test_an_end_of_sequence_inside_a_draft_ends_the_answer(plain, tree, seed):
    # Token 0 ends a sequence; with this bias it comes early and at different places.
    params = SamplingParams(max_tokens=40, seed=seed, logit_bias={0: 6.0})
    ours = answers(tree, PROMPTS, params)
    assert ours == answers(plain, PROMPTS, params)
    assert "stop" in {each[0][2] for each in ours}


@pytest.mark.parametrize("length", range(9, 15))
def test_the_context_may_end_anywhere_in_a_round(model_folder, draft_folder, length):
    params = SamplingParams(max_tokens=None, ignore_eos=True, temperature=0)
    llms = [
        LLM(model_folder, draft=draft, adaptive=False, max_model_len=16, max_num_seqs=2)
        for draft in ("none", draft_folder)
    ]
    theirs, ours = (answers(llm, [list(range(5, 5 + length))], params) for llm in llms)
    assert ours == theirs
    assert len(ours[0][0][1]) == 16 - length


def test_a_drafter_that_is_the_target_is_always_right(model_folder):
    twin = LLM(model_folder, draft=model_folder, adaptive=False, steps=3)
    for sampling in ("greedy", "sampled"):
        params = SamplingParams(max_tokens=13, ignore_eos=True, **SAMPLINGS[sampling])
        (output,) = twin.generate("the rider", params, use_tqdm=False)
        acceptance = output.outputs[0].acceptance
        assert (acceptance.rounds, acceptance.kept_per_position) == (3, [3, 3, 3])


@pytest.mark.parametrize(
    ("asked", "budget"),
    [
        (None, UNBOUNDED),
        (True, UNBOUNDED),
        (False, PLAIN),
        ("off", PLAIN),
        ({"off": True}, PLAIN),
        ({"off": False}, UNBOUNDED),
        ({}, UNBOUNDED),
        ({"steps": 3, "topk": 4, "nodes": 8}, Budget(steps=3, topk=4, nodes=8)),
        ({"steps": 3}, Budget(steps=3, topk=UNBOUNDED.topk, nodes=UNBOUNDED.nodes)),
    ],
)
def test_what_a_request_may_say_about_its_drafts(asked, budget):
    assert parse_speculation(asked) == budget


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("on", "'on'"),
        (3, "cannot be 3"),
        ({"step": 3}, "unknown key 'step'"),
        ({"steps": 0}, "from 1 to 63"),
        ({"nodes": 65}, "from 1 to 64"),
        ({"topk": True}, "topk"),
        ({"off": "yes"}, "true or false"),
    ],
)
def test_anything_else_is_refused_when_the_request_is_made(asked, reason):
    with pytest.raises(RequestError, match=reason):
        SamplingParams(speculation=asked)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"steps": 0}, "change --steps"),
        ({"nodes": 65}, "between 1 and 64"),
        ({"topk": 51, "steps": 1}, "exceeds the vocabulary of 50"),
        ({"steps": 20, "max_model_len": 16}, "does not fit in a context of 16"),
        ({"speculative_config": {"method": "ngram"}}, "keep one of them"),
    ],
)
def test_drafts_that_cannot_work_are_refused_at_start(model_folder, draft_folder, settings, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        LLM(model_folder, **{"draft": draft_folder, **settings})
    assert "\n" not in str(caught.value)


def test_a_draft_with_another_tokenizer_is_refused(model_folder, foreign_folder):
    with pytest.raises(ConfigError, match="use two models with the same tokenizer"):
        LLM(model_folder, draft=foreign_folder, adaptive=False)


def test_a_head_for_another_model_is_refused(tmp_path, model_folder):
    wider = json.loads((model_folder / "config.json").read_text()) | {"hidden_size": 64}
    other = parse_config(wider)
    head = write_head(tmp_path, other, algorithm="eagle3", layers=(0, 1, 2))
    with pytest.raises(ConfigError, match="use the target it was trained for"):
        LLM(model_folder, draft=head, adaptive=False)


def test_other_dialects_draft_the_same(model_folder, draft_folder, plain):
    config = {"model": str(draft_folder), "num_speculative_tokens": 2}
    vllm = LLM(model_folder, speculative_config=config, adaptive=False)
    params = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0)
    (ours,), (theirs,) = (each.generate("the", params, use_tqdm=False) for each in (vllm, plain))
    assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
    assert ours.outputs[0].acceptance.drafted == 2 * ours.outputs[0].acceptance.rounds


@pytest.fixture
def on_pair(model_folder):
    fixed = ["--ignore-eos", "--max-tokens", "8", "--seed", "5", "--no-adaptive"]
    return ["generate", "the rider", "--model", str(model_folder), *fixed]


def test_the_command_line_says_how_drafts_fared(on_pair, draft_folder, capsys):
    draft = ["--draft", str(draft_folder), "--steps", "2"]
    assert run([*on_pair, *draft]) == 0
    assert "tokens per round" in capsys.readouterr().err
    assert run([*on_pair, "--json", *draft]) == 0
    accepted = json.loads(capsys.readouterr().out)["acceptance"]
    assert accepted["drafted"] == 2 * accepted["rounds"]
    assert sum(accepted["kept_per_position"]) == accepted["kept"]
    assert run([*on_pair, "--json", *draft, "--speculative", "off"]) == 0
    assert json.loads(capsys.readouterr().out)["acceptance"]["drafted"] == 0
    assert run([*on_pair, "--json", *draft, "--speculative", '{"steps": 1}']) == 0
    accepted = json.loads(capsys.readouterr().out)["acceptance"]
    assert accepted["drafted"] == accepted["rounds"]


def test_sglangs_flags_choose_the_same_drafter(on_pair, draft_folder, capsys):
    flags = {"algorithm": "STANDALONE", "draft-model-path": draft_folder, "num-draft-tokens": 3}
    given = [
        word for name, value in flags.items() for word in (f"--speculative-{name}", str(value))
    ]
    assert run([*on_pair, "--json", *given]) == 0
    accepted = json.loads(capsys.readouterr().out)["acceptance"]
    assert accepted["drafted"] == 2 * accepted["rounds"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--speculative-config", "{'a'}"], "not JSON"),
        (["--speculative-config", "[1]"], "JSON object"),
        (["--speculative-num-steps", "3"], "--speculative-algorithm"),
        (["--draft", "ngram", "--speculative-config", '{"method": "ngram"}'], "keep one"),
        (["--speculative", '{"deep": 1}'], "unknown key"),
        (["--speculative", "on"], "'on'"),
    ],
)
def test_flags_that_cannot_work_are_refused_in_one_line(on_pair, flags, reason, capsys):
    assert run([*on_pair, *flags]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_lines_of_a_batch_may_limit_their_own_drafts(on_pair, draft_folder, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"speculative": {"off": True}}, {"params": {"speculative": {"steps": 1}}}, {}]
    lines += [{"params": {"speculation": "off"}}, {"speculative": {"depth": 1}}]
    source.write_text("".join(json.dumps({"prompt": "the", **line}) + "\n" for line in lines))
    command = [on_pair[0], *on_pair[2:], "--draft", str(draft_folder), "--steps", "2"]
    command += ["--no-adaptive"]  # else some rounds try other budgets
    assert run([*command, "--input", str(source), "--output", str(target)]) == 1  # the last line
    records = {each["line"]: each for each in map(json.loads, target.read_text().splitlines())}
    assert "unknown key 'depth'" in records.pop(4)["error"]
    assert len({tuple(record["token_ids"]) for record in records.values()}) == 1
    accepted = {number: record["acceptance"] for number, record in records.items()}
    per_round = {number: each["drafted"] / each["rounds"] for number, each in accepted.items()}
    assert per_round == {0: 0, 1: 1, 2: 2, 3: 0}
