"""Ranks that share a model whose layers differ from a Llama."""

import pytest
from support.decoders import expected_logits, harness_of, prompt
from support.styled_families import STYLED_FAMILIES
from support.thread_ranks import ThreadGroup
from support.tiny import save_tiny

from outrider.errors import ConfigError

JOINT_NORMS = ("olmo2", "olmo3")  # queries and keys are normalised over all heads


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", [name for name in STYLED_FAMILIES if name not in JOINT_NORMS])
def test_ranks_together_have_the_logits_of_transformers(family, size, tmp_path):
    model, tokens, group = save_tiny(family, tmp_path), prompt(20), ThreadGroup(size)

    def logits_of(rank):
        return harness_of(tmp_path, ranks=group.ranks[rank]).run({}, {1: (0, tokens)})

    for logits in group.run(logits_of):
        assert (logits - expected_logits(model, tokens)).abs().max() <= 1e-4


@pytest.mark.parametrize("family", JOINT_NORMS)
def test_norms_over_all_heads_are_refused_with_the_fix(family, tmp_path):
    save_tiny(family, tmp_path)
    with pytest.raises(ConfigError, match="over all heads, which ranks cannot share; use a tensor"):
        harness_of(tmp_path, ranks=ThreadGroup(2).ranks[0])
