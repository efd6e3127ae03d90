"""Ranks that share a model whose layers differ from a Llama."""

import pytest
from support.decoders import expected_logits, harness_of, prompt
from support.styled_families import STYLED_FAMILIES
from support.thread_ranks import ThreadGroup
from support.tiny import save_tiny


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", STYLED_FAMILIES)
def test_ranks_together_have_the_logits_of_transformers(family, size, tmp_path):
    model, tokens, group = save_tiny(family, tmp_path), prompt(20), ThreadGroup(size)

    def logits_of(rank):
        return harness_of(tmp_path, ranks=group.ranks[rank]).run({}, {1: (0, tokens)})

    for logits in group.run(logits_of):
        assert (logits - expected_logits(model, tokens)).abs().max() <= 1e-4
