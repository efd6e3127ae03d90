"""The kernel that fills plans, interpreted, against the torch reference. tests/gpu compiles it."""

import pytest

pytest.importorskip("triton")

from support.step_kernels import check_fill, check_place, check_ragged, check_share


@pytest.mark.parametrize("seed", range(12))
def test_queries_and_samples_of_random_poisoned_plans_are_those_of_the_reference(seed):
    check_fill(seed, "cpu")


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("seed", range(12))
def test_nodes_of_ragged_steps_are_placed_as_in_the_reference(seed):
    check_place(seed, "cpu")


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("seed", range(8))
def test_ragged_plans_and_hidden_states_are_those_of_the_reference(seed):
    check_ragged(seed, "cpu")


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", range(12))
def test_drafts_are_shared_between_rows_as_in_the_reference(seed):
    check_share(seed, "cpu")
