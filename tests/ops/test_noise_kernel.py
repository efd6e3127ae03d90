"""The Triton noise, interpreted, has the bits of the torch noise. tests/gpu compiles it."""

import importlib
import sys

import pytest
import torch

from outrider.ops.sampling.gumbel_noise import gumbel_at

pytest.importorskip("triton")
MODULE = "outrider.ops.sampling.gumbel_noise_triton"
SEEDS = torch.tensor([0, 1, 2**31, 2**32 + 5, 2**63 - 1])
POSITIONS = torch.tensor([0, 2**31, 2**31 - 1, 77, 1])


@pytest.fixture
def interpreted(monkeypatch):
    """The kernel module as the interpreter sees it; forgotten afterwards."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    sys.modules.pop(MODULE, None)
    yield importlib.import_module(MODULE)
    del sys.modules[MODULE]


def assert_same_bits(a, b):
    assert torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("vocab", [1, 7, 1024, 3001])
def test_interpreted_noise_of_a_vocabulary_has_the_bits_of_the_torch_noise(interpreted, vocab):
    tokens = torch.arange(vocab, dtype=torch.int32).expand(len(SEEDS), vocab)
    noise = interpreted.gumbel_at_triton(SEEDS, POSITIONS, tokens)
    assert_same_bits(noise, gumbel_at(SEEDS, POSITIONS, tokens))


def test_interpreted_noise_of_chosen_tokens_has_the_bits_of_the_torch_noise(interpreted):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 2**18, (len(SEEDS), 333), generator=generator)
    noise = interpreted.gumbel_at_triton(SEEDS, POSITIONS, tokens)
    assert_same_bits(noise, gumbel_at(SEEDS, POSITIONS, tokens))
