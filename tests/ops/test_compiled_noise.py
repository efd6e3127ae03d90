"""The noise that compiled functions of a CPU draw: the bits of the torch reference."""

import pytest
import torch
from support.torch_threads import torch_threads

from outrider.ops.sampling.gumbel_noise import gumbel_at_reference
from outrider.ops.sampling.gumbel_noise_compiled import gumbel_at_compiled, gumbel_compiled

SEEDS = torch.tensor([0, 1, 2**31 - 1, 2**62 + 12345, -1])
POSITIONS = torch.tensor([0, 7, 131_071, 2**31 - 1, 3])


@pytest.mark.parametrize("threads", [1, 3])
def test_noise_of_a_vocabulary_has_the_bits_of_the_reference(threads):
    tokens = torch.arange(100, 50_000, dtype=torch.int32).expand(5, -1)
    with torch_threads(threads):
        drawn = gumbel_compiled(SEEDS, POSITIONS, tokens.shape[1], 100)
    assert torch.equal(drawn, gumbel_at_reference(SEEDS, POSITIONS, tokens))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_noise_of_chosen_tokens_has_the_bits_of_the_reference(dtype):
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 2**31 - 1, (5, 1500), generator=generator).to(dtype)
    for ids in (tokens, tokens[:1].expand(5, -1), tokens[:, ::2], tokens[:, :1]):
        drawn = gumbel_at_compiled(SEEDS, POSITIONS, ids)
        assert torch.equal(drawn, gumbel_at_reference(SEEDS, POSITIONS, ids))
