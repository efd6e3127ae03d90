"""However a step is run, the tokens are those of the reference decoder."""

import pytest
from support.matrix import DRAFTS, TARGETS, all_cases, mismatches, some_cases


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("case", some_cases(60, seed=0), ids=str)
def test_every_way_of_running_gives_the_reference_tokens(targets, case):
    assert not mismatches(targets[case.target], case)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("case", some_cases(16, seed=1, drafters=("mtp", "modules")), ids=str)
def test_modules_inside_the_target_give_the_reference_tokens(targets, case):
    assert not mismatches(targets[case.target], case)


MERGED = tuple(drafter for drafter, _ in DRAFTS if "+" in drafter)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("case", some_cases(36, seed=2, drafters=MERGED), ids=str)
def test_a_model_and_a_lookup_in_one_tree_give_the_reference_tokens(targets, case):
    assert not mismatches(targets[case.target], case)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    "case",
    some_cases(12, seed=3, drafters=("mixed", "dflash2", "peagle", "pard", "medusa")),
    ids=str,
)
def test_models_that_draft_in_one_pass_give_the_reference_tokens(targets, case):
    assert not mismatches(targets[case.target], case)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("case", some_cases(8, seed=4, drafters=("eagle3-mla",)), ids=str)
def test_heads_with_latents_give_the_reference_tokens(targets, case):
    assert not mismatches(targets[case.target], case)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("drafter", "tree"), DRAFTS)
@pytest.mark.parametrize("target", TARGETS)
def test_the_complete_matrix(targets, target, drafter, tree):
    wanted = target, drafter, tree
    cases = [case for case in all_cases() if (case.target, case.drafter, case.tree) == wanted]
    found = {str(case): mismatches(targets[target], case) for case in cases}
    assert not {case: wrong for case, wrong in found.items() if wrong}
