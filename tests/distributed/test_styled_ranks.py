"""Ranks that share a model whose layers differ from a Llama."""

import pytest
from support.decoders import expected_logits, harness_of, prompt
from support.styled_families import STYLED_FAMILIES
from support.thread_ranks import ThreadGroup
from support.tiny import UNEVEN, save_tiny
from support.tiny_sizes import SIZES
from transformers import Olmo2Config, Olmo2ForCausalLM

from outrider.distributed.rank_group import ONE_RANK
from outrider.models.layers.adjusted_qkv import SharedJointNorm


def are_right(model, folder, size):
    """Whether all ranks have the logits of transformers."""
    tokens, group = prompt(20), ThreadGroup(size)

    def logits_of(rank):
        return harness_of(folder, ranks=group.ranks[rank]).run({}, {1: (0, tokens)})

    expected = expected_logits(model, tokens)
    return all((each - expected).abs().max() <= 1e-4 for each in group.run(logits_of))


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", STYLED_FAMILIES)
def test_ranks_together_have_the_logits_of_transformers(family, size, tmp_path):
    assert are_right(save_tiny(family, tmp_path), tmp_path, size)


def test_ranks_with_different_numbers_of_heads_share_a_norm_over_all_heads(tmp_path):
    model = Olmo2ForCausalLM(Olmo2Config(**SIZES | UNEVEN, pad_token_id=0)).eval()
    model.save_pretrained(tmp_path)
    assert are_right(model, tmp_path, 2)


@pytest.mark.parametrize("mistake", ["own squares", "copies counted"])
def test_a_norm_that_is_not_over_all_heads_is_noticed(tmp_path, monkeypatch, mistake):
    """Mistakes, put back: ranks do not add up, or count a key-value head once for each of them."""
    make = SharedJointNorm.__init__

    def mistaken(self, *norms, **sizes):
        make(self, *norms, **sizes)
        if mistake == "copies counted":
            self._copies = 1
        else:
            self._of_all = self.sizes
            self._ranks = ONE_RANK

    monkeypatch.setattr(SharedJointNorm, "__init__", mistaken)
    assert not are_right(save_tiny("olmo2", tmp_path), tmp_path, 4)
