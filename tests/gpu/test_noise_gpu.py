"""The compiled noise kernel draws the bits that torch draws on a CPU."""

import torch

from outrider.ops.sampling.gumbel_noise import gumbel_at

SEEDS = torch.tensor([0, 1, 2**31, 2**32 + 5, 2**63 - 1])
POSITIONS = torch.tensor([0, 2**31, 2**31 - 1, 77, 1])


def test_compiled_noise_has_the_bits_of_the_torch_noise_on_the_cpu():
    tokens = torch.arange(151_937).expand(len(SEEDS), -1)
    noise = gumbel_at(SEEDS.cuda(), POSITIONS.cuda(), tokens.cuda()).cpu()
    right = gumbel_at(SEEDS, POSITIONS, tokens)
    assert torch.equal(noise.view(torch.int32), right.view(torch.int32))
