"""However a step is run, the tokens are those of the reference decoder."""

import pytest
from support.matrix import all_cases, mismatches, some_cases


@pytest.mark.fast_cases(20)
@pytest.mark.parametrize("case", some_cases(60, seed=0), ids=str)
def test_every_way_of_running_gives_the_reference_tokens(targets, case):
    assert not mismatches(targets[case.target], case)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("case", some_cases(16, seed=1, drafters=("mtp", "modules")), ids=str)
def test_modules_inside_the_target_give_the_reference_tokens(targets, case):
    assert not mismatches(targets[case.target], case)


@pytest.mark.matrix
@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_the_complete_matrix(targets, case):
    assert not mismatches(targets[case.target], case)
