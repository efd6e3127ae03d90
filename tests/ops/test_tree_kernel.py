"""The kernels of draft trees, interpreted, against the torch reference. tests/gpu compiles them."""

import pytest

pytest.importorskip("triton")

from support.block_trees import check_best_tree, check_wide_growth
from support.step_kernels import (
    check_calibration,
    check_chain,
    check_growth,
    check_start,
    check_states,
)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", range(12))
def test_levels_tips_and_trees_are_those_of_the_reference_whatever_the_budgets_and_ties(seed):
    check_growth(seed, "cpu")


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("seed", range(16))
def test_the_best_nodes_over_a_block_are_those_of_the_reference(seed):
    check_best_tree(seed, "cpu")


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", range(10))
def test_levels_with_many_tips_are_those_of_the_reference(seed):
    check_wide_growth(seed, "cpu")


@pytest.mark.parametrize("seed", range(8))
def test_chains_are_those_of_the_reference(seed):
    check_chain(seed, "cpu")


@pytest.mark.parametrize("seed", range(6))
def test_node_0_starts_from_the_hidden_state_of_its_row(seed):
    check_start(seed, "cpu")


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", range(10))
def test_hidden_states_and_tokens_of_a_catch_up_are_those_of_the_reference(seed):
    check_states(seed, "cpu")


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", range(12))
def test_measured_chances_and_counts_are_those_of_the_reference(seed):
    check_calibration(seed, "cpu")
