"""The kernels that commit a step, interpreted, against the torch reference."""

import pytest

pytest.importorskip("triton")

from support.step_kernels import check_commit


@pytest.mark.parametrize("seed", range(12))
def test_tables_and_accepted_kv_are_those_of_the_reference_in_every_layer(seed):
    check_commit(seed, "cpu")
