"""NCCL collectives of one rank, run and inside a captured graph."""

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(name="ranks")
def one_nccl_rank():
    from torch._C._distributed_c10d import HashStore

    from outrider.distributed.nccl_ranks import NcclRanks

    device = torch.device("cuda:0")
    return NcclRanks(HashStore(), rank=0, size=1, device=device, timeout_s=60.0)


def collectives(ranks, x, ids):
    ranks.add_up_(x)
    ranks.copy_first_(x)
    ranks.take_largest_(ids)
    return ranks.join(x), ranks.exchange(x[None])[0]


def test_collectives_of_one_rank_change_nothing(ranks):
    x, ids = torch.randn(3, 5, device="cuda"), torch.arange(4, device="cuda")
    joined, exchanged = collectives(ranks, x.clone(), ids)
    assert torch.equal(joined, x)
    assert torch.equal(exchanged, x)
    assert ranks.least(7) == 7


def test_a_captured_graph_contains_the_collectives(ranks):
    x, ids = torch.zeros(3, 5, device="cuda"), torch.arange(4, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        collectives(ranks, x, ids)
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="relaxed")
        joined, _ = collectives(ranks, x, ids)
        graph.capture_end()
        x.fill_(3.0)
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(joined, torch.full((3, 5), 3.0, device="cuda"))
