"""The kernel that fills plans, interpreted, against the torch reference. tests/gpu compiles it."""

import pytest

pytest.importorskip("triton")

from support.step_kernels import check_fill


@pytest.mark.parametrize("seed", range(12))
def test_queries_and_samples_of_random_poisoned_plans_are_those_of_the_reference(seed):
    check_fill(seed, "cpu")
