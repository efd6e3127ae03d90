"""The kernel that verifies drafts, interpreted, against the torch reference."""

import pytest

pytest.importorskip("triton")

from support.step_kernels import check_verify


@pytest.mark.parametrize("seed", range(12))
def test_verify_results_of_random_trees_are_those_of_the_reference(seed):
    check_verify(seed, "cpu")
