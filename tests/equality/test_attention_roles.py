"""Every attention backend, and two of them in one engine, give the same tokens."""

from dataclasses import replace

import pytest
import torch
from support.captured_prompts import run_prompts
from support.engines import Shape, engine_of
from support.matrix import TREES, Case, mismatches, some_cases
from support.poison import answers

from outrider.kv.per_layer_attention import PerLayerAttention
from outrider.kv.reference_attention import ReferenceAttention
from outrider.step import fill_plan

ROLES = [
    ("per_layer", "per_layer"),
    ("compiled", "per_layer"),
    ("per_layer", "compiled"),
    ("reference", "per_layer"),
    ("per_layer", "reference"),
    ("reference", "reference"),
    ("compiled", "reference"),
]
CASES = [
    *some_cases(8, seed=3),
    *some_cases(6, seed=4, drafters=("relative", "eagle3", "mtp", "modules", "dflash")),
]


def with_roles(shape, roles):
    return replace(shape, attention=roles[0], draft_attention=roles[1])


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("case", "roles"),
    [(case, ROLES[index % len(ROLES)]) for index, case in enumerate(CASES)],
    ids=str,
)
def test_tokens_are_those_of_the_reference_decoder(targets, case, roles):
    case = replace(case, shape=with_roles(case.shape, roles))
    assert not mismatches(targets[case.target], case)


@pytest.mark.fast_cases(0)
@pytest.mark.parametrize("drafter", ["eagle3", "relative", "modules"])
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("roles", ROLES[:3], ids="-".join)
def test_layers_that_plan_for_themselves_leave_the_same_drafts_and_kv(
    models, roles, executor, drafter
):
    """Plans hold garbage before every step; all pages of target and drafter are compared."""
    shape = Shape(pad=8, step_tokens=64, executor=executor)
    tree = "chain" if drafter == "modules" else "tree"
    planned = run_prompts(models, shape, drafter, tree)
    found = run_prompts(models, with_roles(shape, roles), drafter, tree)
    for right, got in zip(planned, found, strict=True):
        assert (got.tokens, got.trees) == (right.tokens, right.trees)
        assert all(torch.equal(a, b) for a, b in zip(got.pools, right.pools, strict=True))


def bake_wrong_places(monkeypatch):
    """Plans write the KV of every query token one slot further. Nothing else of them changes."""
    place = fill_plan.place_queries

    def misplaced(plan, tree, **how):
        place(plan, tree, **how)
        slots = plan.queries.slots
        slots.add_(slots >= how["page_size"])

    monkeypatch.setattr(fill_plan, "place_queries", misplaced)


WRONG = [("compiled", False), ("reference", False), ("per_layer", True)]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("attention", "is_right"), WRONG)
@pytest.mark.parametrize(("target", "drafter"), [("llama", "none"), ("deepseek-v3", "none")])
def test_write_targets_that_are_wrong_in_the_plan_are_noticed(
    targets, monkeypatch, target, drafter, attention, is_right
):
    """A mistake, put back. Layers that plan for themselves do not read the wrong places, so the two
    ways differ: comparing them tests writes, too.
    """
    bake_wrong_places(monkeypatch)
    shape = Shape(attention=attention, step_tokens=64, executor="tape")
    found = mismatches(targets[target], Case(shape, False, "greedy", drafter))
    assert (not found) is is_right


@pytest.mark.slow
@pytest.mark.parametrize("role", ["target", "draft"])
def test_wrong_write_targets_of_one_role_change_what_that_role_does(models, monkeypatch, role):
    """Of a target the tokens, of a drafter which of them it proposed."""
    own = {"target": ("compiled", "per_layer"), "draft": ("per_layer", "compiled")}[role]
    shape, both = Shape(pad=8, step_tokens=64), ("per_layer", "per_layer")
    right = run_prompts(models, with_roles(shape, both), "relative", "chain")
    bake_wrong_places(monkeypatch)
    same = run_prompts(models, with_roles(shape, both), "relative", "chain")
    found = run_prompts(models, with_roles(shape, own), "relative", "chain")
    assert [(each.tokens, each.trees) for each in same] == [
        (each.tokens, each.trees) for each in right
    ]
    are_tokens_equal = [each.tokens for each in found] == [each.tokens for each in right]
    assert are_tokens_equal is (role == "draft")
    assert [each.trees for each in found] != [each.trees for each in right]


@pytest.mark.fast_cases(0)
@pytest.mark.parametrize("target", ["llama", "deepseek-v3"])
def test_unused_memory_never_reaches_an_answer(targets, target):
    models, draft = targets[target], ("eagle3", "tree")
    shape = with_roles(Shape(executor="tape"), ("per_layer", "per_layer"))
    assert answers(models, draft, shape, float("nan")) == answers(models, draft, shape)


def test_each_role_has_the_backend_that_was_chosen_for_it(models):
    shape = Shape(attention="reference", draft_attention="per_layer")
    engine = engine_of(models.target, shape, models.draft("eagle3", TREES["chain"]))
    program = engine._runner._program
    assert type(program._attention) is ReferenceAttention
    assert type(program.drafter._drafter._attention) is PerLayerAttention
