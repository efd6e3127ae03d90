"""Plans filled by compiled functions on a CPU against the torch reference."""

import random

import pytest
from support.step_kernels import check_fill, random_step, some_tree

from outrider.ops.tree.fill_queries_compiled import fill_queries_compiled


@pytest.mark.parametrize("is_ragged", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_query_tokens_are_placed_as_in_the_reference(seed, is_ragged):
    check_fill(seed, "cpu", is_ragged=is_ragged, fill=fill_queries_compiled)


def wrong_page(plan, small):
    plan.decode.lengths[0] = small.page_size * small.table.pages.shape[1]


def wrong_owner(plan, small):
    plan.chunk.owners[0] = 1 << 40


def wrong_count(plan, small):
    plan.chunk.counts[0] += 1 << 40


@pytest.mark.parametrize("spoil", [wrong_page, wrong_owner, wrong_count])
def test_a_place_outside_of_its_tensors_is_an_error(spoil):
    seed = next(
        seed
        for seed in range(100)
        if (shape := random_step(random.Random(seed), nodes=2)[1].shape).rows and shape.chunk.rows
    )
    small, plan = random_step(random.Random(seed), nodes=2)
    spoil(plan, small)
    with pytest.raises(IndexError, match="page table"):
        fill_queries_compiled(
            some_tree(random.Random(1), plan.shape.rows, plan.shape.nodes),
            plan.decode,
            plan.chunk,
            pages=small.table.pages,
            queries=plan.queries,
            sampled=plan.sampled,
            page_size=small.page_size,
            first_node=0,
        )
