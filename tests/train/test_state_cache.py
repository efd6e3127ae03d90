"""The cache of the target's states: what is read is what was written, or nothing."""

import torch

from outrider.train.packed_target import PackedHiddenStates
from outrider.train.state_cache import make_state_cache


def states(*, num):
    return PackedHiddenStates(
        aux_hidden_states=torch.randn(num, 5, 12), hidden_states=torch.randn(num, 5, 4)
    )


def make(**sizes):
    where = {"dtype": torch.float32, "device": torch.device("cpu")}
    return make_state_cache(length=5, hidden=4, num_aux=3, **where, **sizes)


def test_a_batch_is_read_when_all_of_its_sequences_were_written():
    cache = make(num=6, limit_gb=1.0)
    written = states(num=3)
    cache.write([4, 0, 2], written)
    assert cache.read([0, 1]) is None
    read = cache.read([2, 4])
    assert torch.equal(read.aux_hidden_states, written.aux_hidden_states[[2, 0]])
    assert torch.equal(read.hidden_states, written.hidden_states[[2, 0]])


def test_sequences_beyond_the_limit_are_not_kept():
    each_gb = 5 * 16 * 4 / 1e9
    cache = make(num=6, limit_gb=2.5 * each_gb)
    assert len(cache) == 2
    cache.write([1, 2], states(num=2))
    assert cache.read([1]) is not None
    assert cache.read([2]) is None
    assert make(num=6, limit_gb=0.5 * each_gb) is None
