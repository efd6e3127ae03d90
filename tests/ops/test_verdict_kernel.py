"""The kernel that judges drafts, interpreted, against the torch law. tests/gpu compiles it."""

import pytest

pytest.importorskip("triton")

from support.step_kernels import check_verify


@pytest.mark.parametrize("seed", range(12))
def test_verdicts_on_random_trees_are_those_of_the_law(seed):
    check_verify(seed, "cpu")
