"""Reported hidden states are those of transformers, of accepted positions alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.engines import Shape, engine_of, make_submission
from support.matrix import PROMPTS, SAMPLINGS, TREES, sampling_of

from outrider.runtime import program

MAX_TOKENS = 9
CASES = [  # drafter, tree, how the engine runs
    ("none", "chain", Shape()),
    ("none", "chain", Shape(pad=4, executor="tape", depth=1, step_tokens=9)),
    ("relative", "tree", Shape(depth=1, step_tokens=40)),
    ("relative", "wide", Shape(pad=4, executor="tape", depth=1, step_tokens=87)),
    ("twin", "tree", Shape(executor="tape", step_tokens=33, page_size=16)),
    ("eagle", "chain", Shape(pad=4, executor="tape", depth=1, step_tokens=19)),
    ("eagle3", "tree", Shape(executor="tape", depth=1, step_tokens=39)),
    ("mtp", "chain", Shape(step_tokens=17, page_size=1)),
    ("modules", "chain", Shape(executor="tape", depth=1, step_tokens=23)),
]


def run(engine, submissions, emitted=()):
    """Tokens and hidden states of every request, by request id."""
    for submission in submissions:
        engine.add(submission, tuple(emitted))
    tokens = {each.request_id: [] for each in submissions}
    states = {each.request_id: [] for each in submissions}
    while engine.has_work:
        for update in engine.step():
            assert update.finish != "error", update.reason
            tokens[update.request_id] += update.tokens
            for held in update.hidden_states:
                rows = np.frombuffer(held.values, dtype="<f4").reshape(len(held), held.width)
                states[update.request_id].append(rows)
    return tokens, {name: np.concatenate(parts) for name, parts in states.items() if parts}


def reference(theirs, text):
    """[tokens - 1, hidden]: the last token of a text has not run."""
    with torch.inference_mode():
        output = theirs(torch.tensor([text]), output_hidden_states=True)
    return output.hidden_states[-1][0, :-1].numpy()


def submissions_of(mode, **more):
    return [
        make_submission(
            f"r{i}",
            prompt,
            replace(sampling_of("mixed", i), hidden_states=mode),
            max_tokens=MAX_TOKENS,
            **more,
        )
        for i, prompt in enumerate(PROMPTS)
    ]


def differences(models, drafter, tree, shape):
    """The largest difference of any value, with every mode in turn and a prefix that is cached."""
    engine = engine_of(models.target, shape, models.draft(drafter, TREES[tree]))
    worst = 0.0
    for mode in ("all", "last", "all"):
        tokens, states = run(engine, submissions_of(mode))
        for i, prompt in enumerate(PROMPTS):
            right = reference(models.theirs, [*prompt, *tokens[f"r{i}"]])
            got = states[f"r{i}"]
            # With "last" the front end keeps the last of those that chose a token.
            right = right if mode == "all" else right[-MAX_TOKENS:]
            assert got.shape == right.shape
            worst = max(worst, float(np.abs(got - right).max()))
    return worst


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("drafter", "tree", "shape"), CASES, ids=lambda each: str(each)[:8])
def test_hidden_states_are_those_of_transformers(models, drafter, tree, shape):
    assert differences(models, drafter, tree, shape) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["none", "relative", "eagle3"])
def test_latent_attention_reports_the_same(targets, drafter):
    shape = Shape(pad=4, executor="tape", depth=1, step_tokens=40)
    assert differences(targets["deepseek-v3"], drafter, "tree", shape) < 1e-4


@pytest.mark.slow
def test_hidden_states_of_rejected_nodes_are_noticed(models, monkeypatch):
    """A mistake, put back: nodes in the order of the tree instead of the accepted ones."""
    accepted = program.accepted_states

    def first_nodes(hidden_states, of_nodes, path):
        return accepted(hidden_states, of_nodes, torch.arange(path.shape[1]).expand_as(path))

    monkeypatch.setattr(program, "accepted_states", first_nodes)
    assert differences(models, *CASES[2]) > 1e-2


def test_a_stop_inside_a_round_ends_the_hidden_states_too(models):
    shape, draft = Shape(), models.draft("twin", TREES["chain"])
    whole, _ = run(engine_of(models.target, shape, draft), submissions_of("all"))
    prompt, tokens = PROMPTS[0], whole["r0"]
    stop = next(token for at, token in enumerate(tokens) if at and token not in tokens[:at])
    submission = submissions_of("all", stop_ids=(stop,))[0]
    tokens, states = run(engine_of(models.target, shape, draft), [submission])
    right = reference(models.theirs, [*prompt, *tokens["r0"]])
    assert tokens["r0"][-1] == stop
    assert states["r0"] == pytest.approx(right, abs=1e-4)


@pytest.mark.slow
def test_a_preempted_request_reports_every_position_once(models):
    shape = Shape(kv_tokens=64, page_size=4, max_rows=4)
    engine = engine_of(models.target, shape)
    wanted = [
        make_submission(
            f"r{i}", PROMPTS[0], replace(SAMPLINGS["greedy"], hidden_states="all"), max_tokens=30
        )
        for i in range(3)
    ]
    tokens, states = run(engine, wanted)
    right = reference(models.theirs, [*PROMPTS[0], *tokens["r0"]])
    for name in tokens:
        assert states[name] == pytest.approx(right, abs=1e-4)


def test_a_request_that_another_engine_began_reports_only_the_rest(models):
    submission = submissions_of("all")[0]
    tokens, states = run(engine_of(models.target, Shape()), [submission])
    rest, left = run(engine_of(models.target, Shape()), [submission], emitted=tokens["r0"][:4])
    assert rest["r0"] == tokens["r0"][4:]
    assert left["r0"] == pytest.approx(states["r0"][-len(rest["r0"]) :], abs=1e-4)


def test_steps_without_such_requests_copy_nothing(models, monkeypatch):
    packed = []
    pack = program.pack_output

    def note(*parts):
        packed.append(pack(*parts))
        return packed[-1]

    monkeypatch.setattr(program, "pack_output", note)
    run(engine_of(models.target, Shape()), [make_submission("a", PROMPTS[0], SAMPLINGS["greedy"])])
    plain = [each.reals.numel() for each in packed]
    packed.clear()
    sampling = replace(SAMPLINGS["greedy"], hidden_states="last")
    run(engine_of(models.target, Shape()), [make_submission("a", PROMPTS[0], sampling)])
    hidden = models.target.config.block.hidden
    assert [each.reals.numel() for each in packed] == [size + hidden for size in plain]
