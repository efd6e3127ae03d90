"""Draft trees grown, selected, verified and committed by compiled functions of a CPU."""

import random

import pytest
import torch
from support.block_trees import check_wide_growth
from support.step_kernels import (
    check_calibration,
    check_commit,
    check_growth,
    check_verify,
    random_step,
    random_verify_result,
    some_tree,
)

from outrider.ops.tree.acceptance_table_compiled import (
    calibrate_compiled_,
    count_accepted_compiled_,
)
from outrider.ops.tree.commit_rows_compiled import commit_rows_compiled
from outrider.ops.tree.compact_kv_compiled import compact_kv_compiled
from outrider.ops.tree.grow_level_compiled import grow_level_compiled
from outrider.ops.tree.select_nodes_compiled import select_nodes_compiled
from outrider.ops.tree.verify_compiled import verify_compiled


@pytest.mark.fast_cases(20)
@pytest.mark.parametrize("seed", range(40))
def test_levels_and_trees_are_those_of_the_reference(seed):
    check_growth(seed, "cpu", grow=grow_level_compiled, select=select_nodes_compiled)


@pytest.mark.parametrize("seed", range(10))
def test_levels_with_many_tips_are_those_of_the_reference(seed):
    check_wide_growth(seed, "cpu", grow=grow_level_compiled)


@pytest.mark.fast_cases(20)
@pytest.mark.parametrize("seed", range(40))
def test_the_accepted_path_is_that_of_the_reference(seed):
    check_verify(seed, "cpu", verify=verify_compiled)


@pytest.mark.fast_cases(20)
@pytest.mark.parametrize("seed", range(40))
def test_rows_and_kv_after_a_step_are_those_of_the_reference(seed):
    check_commit(seed, "cpu", compact=compact_kv_compiled, commit=commit_rows_compiled)


@pytest.mark.fast_cases(20)
@pytest.mark.parametrize("seed", range(40))
def test_measured_chances_are_those_of_the_reference(seed):
    compiled = {"calibrate": calibrate_compiled_, "count": count_accepted_compiled_}
    check_calibration(seed, "cpu", **compiled)


def step_with_rows():
    seed = next(
        seed for seed in range(100) if random_step(random.Random(seed), nodes=3)[1].shape.rows
    )
    small, plan = random_step(random.Random(seed), nodes=3)
    rng = random.Random(1)
    _, result = random_verify_result(rng, some_tree(rng, plan.shape.rows, 3))
    return small, plan, result


def test_a_row_outside_of_the_table_is_an_error():
    small, plan, result = step_with_rows()
    plan.decode.rows[0] = 1 << 40
    choice = torch.zeros_like(plan.chunk.rows)
    with pytest.raises(IndexError, match="row table"):
        commit_rows_compiled(
            plan.decode,
            result,
            plan.chunk,
            choice,
            lengths=small.table.lengths,
            last_tokens=small.table.last_tokens,
        )


def test_accepted_kv_outside_of_the_page_table_is_an_error():
    small, plan, result = step_with_rows()
    result.num_accepted[0], result.path[0, 1:] = 1, 2
    plan.decode.lengths[0] = 1 << 40
    storage = torch.zeros(1, small.num_pages, small.page_size, 2, 4)
    with pytest.raises(IndexError, match="page table"):
        compact_kv_compiled(storage, plan.decode, result, small.table.pages)
