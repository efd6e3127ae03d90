"""The draft top-k, interpreted, is that of the torch reference. tests/gpu compiles it."""

import pytest
import torch
from support.sampling_cases import TEMPERATURES, random_logits, table_of

from outrider.ops.sampling.sampling_columns import NoNoise
from outrider.ops.sampling.top_tokens import top_tokens_reference
from outrider.wire.row_sampling import RowSampling

pytest.importorskip("triton")
from outrider.ops.sampling.top_tokens_triton import top_tokens_triton

if torch.cuda.is_available():
    pytest.skip("compiled there; see tests/gpu", allow_module_level=True)


def untied_logits(seed, n, vocab):
    """Distinct in every row, so that topk has one answer on every device."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(n)])
    return order * (16.0 / vocab) - 8.0


def likely_by_kernel(logits, ids, topk):
    return top_tokens_triton(logits, ids, topk, NoNoise(unread=ids))


def likely_by_reference(logits, ids, topk):
    return top_tokens_reference(logits, ids, topk, NoNoise(unread=ids))


def ids_of(vocab):
    return torch.arange(vocab) * 3 + 1


def assert_alike(fused, right):
    assert torch.equal(fused.tokens, right.tokens)
    torch.testing.assert_close(fused.logprobs, right.logprobs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("vocab", "topk"), [(1, 1), (7, 3), (1000, 4), (3001, 1), (3001, 16)])
def test_the_most_likely_tokens_are_those_of_the_reference(vocab, topk):
    logits = untied_logits(vocab, 3, vocab)
    fused = likely_by_kernel(logits, ids_of(vocab), topk)
    assert_alike(fused, likely_by_reference(logits, ids_of(vocab), topk))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab", "topk"), [(1, 1), (7, 3), (3001, 4)])
def test_the_most_likely_samples_are_those_of_the_reference(vocab, topk, dtype):
    samplings = [RowSampling(seed=7 * t, temperature=x) for t, x in enumerate(TEMPERATURES)]
    logits = untied_logits(2, 5, vocab)
    logits[1:] = logits[1:].to(dtype).float()  # noise separates what rounding ties
    if dtype != torch.float32:
        logits = logits[1:]
    rows = torch.arange(5)[-len(logits) :] + 1
    noise = table_of(samplings, vocab=4 * vocab).noise(rows, rows * 5)
    fused = top_tokens_triton(logits.to(dtype), ids_of(vocab), topk, noise)
    assert_alike(fused, top_tokens_reference(logits, ids_of(vocab), topk, noise))


def test_of_equally_likely_tokens_the_lower_index_comes_first():
    logits = torch.zeros(1, 2500)
    logits[0, [2400, 1300, 1200, 30]] = 2.0
    logits[0, 900] = 3.0
    likely = likely_by_kernel(logits, torch.arange(2500), 6)
    assert likely.tokens.tolist() == [[900, 30, 1200, 1300, 2400, 0]]


def test_impossible_tokens_are_proposed_once_each_and_last():
    logits = torch.full((1, 1100), -torch.inf)
    logits[0, 1050] = 1.0
    likely = likely_by_kernel(logits, torch.arange(1100), 3)
    assert likely.tokens.tolist() == [[1050, 0, 1]]
    assert likely.logprobs.tolist() == [[0.0, -torch.inf, -torch.inf]]


def test_a_row_is_likely_in_any_batch_what_it_is_alone():
    logits = random_logits(4, 5, 2100)
    together = likely_by_kernel(logits, torch.arange(2100), 4)
    alone = likely_by_kernel(logits[3:4], torch.arange(2100), 4)
    assert torch.equal(alone.tokens, together.tokens[3:4])
    assert torch.equal(alone.logprobs, together.logprobs[3:4])


def test_columns_beyond_the_draft_vocabulary_are_not_read():
    logits = torch.full((2, 1500), torch.nan)
    logits[:, :1200] = untied_logits(1, 2, 1200)
    fused = likely_by_kernel(logits[:, :1200], torch.arange(1200), 3)
    assert_alike(fused, likely_by_reference(logits[:, :1200], torch.arange(1200), 3))
