"""Reported hidden states are those of transformers, of accepted positions alone."""

from dataclasses import replace

import pytest
import torch
from support.engines import Shape, engine_of, make_submission
from support.matrix import PROMPTS, SAMPLINGS, TREES
from support.reported_states import (
    reference_states,
    run_states,
    state_differences,
    state_submissions,
)
from support.row_matrix import PROMPTS as ROW_PROMPTS
from support.row_matrix import shape_of
from support.row_models import FAMILIES, row_model, row_reference
from support.styled_families import STYLED_FAMILIES

from outrider.runtime import program

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
    ("ngram", "tree", Shape(pad=4, depth=1, step_tokens=39)),
    ("relative+suffix", "tree", Shape(executor="tape", step_tokens=50)),
    ("dflash2", "tree", Shape(executor="tape", pad=4, step_tokens=39)),
    ("dspark", "chain", Shape(depth=1, step_tokens=19, page_size=1)),
    ("peagle", "tree", Shape(executor="tape", depth=1, step_tokens=33)),
    ("pard", "chain", Shape(pad=4, step_tokens=23)),
    ("medusa", "tree", Shape(executor="tape", pad=4, depth=1, step_tokens=40)),
]


def differences(models, drafter, tree, shape):
    engine = engine_of(models.target, shape, models.draft(drafter, TREES[tree]))
    return state_differences(models.theirs, engine)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("drafter", "tree", "shape"), CASES, ids=lambda each: str(each)[:8])
def test_hidden_states_are_those_of_transformers(models, drafter, tree, shape):
    assert differences(models, drafter, tree, shape) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["none", "relative", "eagle3"])
def test_latent_attention_reports_the_same(targets, drafter):
    shape = Shape(pad=4, executor="tape", depth=1, step_tokens=40)
    assert differences(targets["deepseek-v3"], drafter, "tree", shape) < 1e-4


def some_way(index):
    """An executor, a depth and a padding; neighbours differ."""
    executor = ("eager", "tape")[index % 2]
    return {"executor": executor, "depth": index // 2 % 2, "pad": (1, 4)[index // 3 % 2]}


STYLED = [
    (family, ("none", "ngram", "relative", "eagle3")[index % 4], index)
    for index, family in enumerate(STYLED_FAMILIES)
]


@pytest.mark.fast_cases(0)
@pytest.mark.parametrize(("family", "drafter", "index"), STYLED)
def test_layers_that_differ_report_the_same(models_of, family, drafter, index):
    """Multipliers, norms after layers and windows; a state is what the head reads."""
    models, shape = models_of(family), Shape(step_tokens=33 + index, **some_way(index))
    engine = engine_of(models.target, shape, models.draft(drafter, "tree"))
    assert state_differences(models.theirs, engine) < 1e-4


ROWS = [
    (family, drafter, index)
    for index, (family, drafter) in enumerate(
        (family, drafter)
        for family in FAMILIES
        for drafter in ("none", "ngram", "modules", "head")
        if drafter == "modules" or family in ("v4", "qwen3-next", "qwen3.5")
    )
]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("family", "drafter", "index"), ROWS)
def test_models_with_row_state_report_the_same(family, drafter, index):
    """A state is what the head reads: of DeepSeek-V4 one vector of all its streams."""
    target, drafts = row_model(family)
    draft = drafts[drafter]
    shape = shape_of(draft, chunk=(1, 7, 30)[index % 3], **some_way(index))
    engine = engine_of(target, shape, draft)
    assert state_differences(row_reference(family), engine, ROW_PROMPTS) < 1e-4


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
    whole, _ = run_states(engine_of(models.target, shape, draft), state_submissions("all"))
    prompt, tokens = PROMPTS[0], whole["r0"]
    stop = next(token for at, token in enumerate(tokens) if at and token not in tokens[:at])
    submission = state_submissions("all", stop_ids=(stop,))[0]
    tokens, states = run_states(engine_of(models.target, shape, draft), [submission])
    right = reference_states(models.theirs, [*prompt, *tokens["r0"]])
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
    tokens, states = run_states(engine, wanted)
    right = reference_states(models.theirs, [*PROMPTS[0], *tokens["r0"]])
    for name in tokens:
        assert states[name] == pytest.approx(right, abs=1e-4)


def test_a_request_that_another_engine_began_reports_only_the_rest(models):
    submission = state_submissions("all")[0]
    tokens, states = run_states(engine_of(models.target, Shape()), [submission])
    rest, left = run_states(
        engine_of(models.target, Shape()), [submission], emitted=tokens["r0"][:4]
    )
    assert rest["r0"] == tokens["r0"][4:]
    assert left["r0"] == pytest.approx(states["r0"][-len(rest["r0"]) :], abs=1e-4)


def test_steps_without_such_requests_copy_nothing(models, monkeypatch):
    packed = []
    pack = program.pack_output

    def note(*parts):
        packed.append(pack(*parts))
        return packed[-1]

    monkeypatch.setattr(program, "pack_output", note)
    run_states(
        engine_of(models.target, Shape()), [make_submission("a", PROMPTS[0], SAMPLINGS["greedy"])]
    )
    plain = [each.reals.numel() for each in packed]
    packed.clear()
    sampling = replace(SAMPLINGS["greedy"], hidden_states="last")
    run_states(engine_of(models.target, Shape()), [make_submission("a", PROMPTS[0], sampling)])
    hidden = models.target.config.block.hidden
    assert [each.reals.numel() for each in packed] == [size + hidden for size in plain]
