"""Ranks that do not make the same collectives: all of them raise at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from outrider.distributed.gloo_ranks import GlooRanks

SIZES = [1, 4, 2041, 5000]  # floats: frames that are nearly empty, full, and too small


def run_ranks(work, size=2):
    """What every rank returned or raised; here a rank is a thread."""
    store = HashStore()

    def run(rank):
        ranks = GlooRanks(store, rank=rank, size=size, host="127.0.0.1", timeout_s=20.0)
        ranks.expect_prompt_ranks()
        try:
            return work(ranks)
        except (AssertionError, RuntimeError) as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


@pytest.mark.parametrize("size", [2, 3])
def test_collectives_of_any_size_are_those_of_all_ranks(size):
    def work(ranks):
        found = []
        for length in SIZES:
            own = torch.arange(length).float() + 1000 * ranks.rank
            total, first = own.clone(), own.clone()
            ranks.add_up_(total)
            ranks.copy_first_(first)
            found += [total, first, ranks.join(own[None])[0]]
            ranks.end_step()
        return [*found, torch.tensor([ranks.least(5 - ranks.rank)])]

    parts = [[torch.arange(n).float() + 1000 * rank for rank in range(size)] for n in SIZES]
    expected = [x for own in parts for x in (sum(own), own[0], torch.cat(own))]
    for found in run_ranks(work, size):
        for x, right in zip(found, [*expected, torch.tensor([6 - size])], strict=True):
            assert torch.equal(x, right)


def one_more(ranks):
    if ranks.rank:
        ranks.add_up_(torch.ones(8))


def another_size(ranks):
    ranks.add_up_(torch.ones(9000 if ranks.rank else 8))


def another_kind(ranks):
    if ranks.rank:
        ranks.copy_first_(torch.ones(8))
    else:
        ranks.add_up_(torch.ones(8))


@pytest.mark.parametrize("mistake", [one_more, another_size, another_kind])
def test_a_rank_that_makes_another_collective_is_noticed_in_the_same_step(mistake):
    def work(ranks):
        ranks.end_step()
        mistake(ranks)
        ranks.add_up_(torch.ones(8))  # of the size of the one that is too many
        ranks.end_step()

    for error in run_ranks(work):
        assert isinstance(error, AssertionError)
        assert "do not make the same collectives: rank 0 is at" in str(error)
        assert "of step 1" in str(error)
