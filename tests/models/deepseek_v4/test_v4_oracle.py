"""DeepSeek-V4 against transformers: whole prompts, chunks, decoding and roll-back agree with it."""

import random

import pytest
import torch
from support.v4 import expected_logits, harness_of, prompt, saved_v4

TOLERANCE = 1e-4  # largest difference of any logit, in float32


def assert_close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("length", [1, 3, 4, 7, 8, 16, 37, 100])
def test_a_prompt_has_the_logits_of_transformers(folder, length):
    tokens = prompt(length, seed=length)
    assert_close(
        harness_of(folder).run({}, {1: (0, tokens)}), expected_logits(saved_v4(folder), tokens)
    )


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("sizes", [[1] * 9, [5, 3, 1, 8, 17, 2, 30], [16, 16], [7] * 8])
def test_a_prompt_in_chunks_has_the_same_logits(folder, sizes):
    tokens = prompt(sum(sizes), seed=3)
    harness, found, start = harness_of(folder), [], 0
    for size in sizes:
        found.append(harness.run({}, {1: (start, tokens[start : start + size])}))
        start += size
    assert_close(torch.cat(found), expected_logits(saved_v4(folder), tokens))


@pytest.mark.slow
@pytest.mark.parametrize("pad", [1, 3])
def test_decoding_token_by_token_has_the_same_logits(folder, pad):
    tokens = prompt(60, seed=4)
    harness = harness_of(folder, pad=pad)
    right = expected_logits(saved_v4(folder), tokens)
    harness.run({}, {2: (0, tokens[:5])})
    for length in range(5, 60):
        logits = harness.run({2: (length, [tokens[length]])}, {})
        assert_close(logits[0], right[length])


@pytest.mark.parametrize("pad", [1, 4])
def test_rows_of_one_step_know_nothing_of_each_other(folder, pad):
    """Decoding rows and chunks of several prompts, all at different lengths."""
    texts = {row: prompt(40 + row, seed=row) for row in (1, 2, 3, 4)}
    right = {row: expected_logits(saved_v4(folder), text) for row, text in texts.items()}
    harness = harness_of(folder, pad=pad)
    harness.run({}, {1: (0, texts[1][:19]), 2: (0, texts[2][:4])})
    logits = harness.run(
        {1: (19, texts[1][19:20]), 2: (4, texts[2][4:5])},
        {3: (0, texts[3][:11]), 4: (0, texts[4][:23])},
    )
    first = -(-2 // pad) * pad  # flat place of the first chunk token
    assert_close(logits[0], right[1][19])
    assert_close(logits[1], right[2][4])
    assert_close(logits[first : first + 11], right[3][:11])
    assert_close(logits[first + 11 : first + 34], right[4][:23])
    logits = harness.run(
        {3: (11, texts[3][11:12])}, {1: (20, texts[1][20:41]), 4: (23, texts[4][23:30])}
    )
    first = pad
    assert_close(logits[0], right[3][11])
    assert_close(logits[first : first + 21], right[1][20:41])
    assert_close(logits[first + 21 : first + 28], right[4][23:30])


def speculate(harness, tokens, *, nodes, seed):
    """Run a text by chains that are right up to a random node; the logits of accepted nodes."""
    rng, length, found = random.Random(seed), 0, []
    first = rng.randint(1, 12)
    found.append(harness.run({}, {3: (0, tokens[:first])}))
    length = first
    while length + nodes <= len(tokens):
        emitted = rng.randint(1, nodes)  # tokens that stay
        wrong = [rng.randrange(67) for _ in range(nodes - emitted)]
        chain = tokens[length : length + emitted] + wrong
        logits = harness.run({3: (length, chain)}, {}, nodes=nodes)
        found.append(logits[:emitted])
        length += emitted
    return torch.cat(found)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("nodes", [2, 3, 5, 10, 16])
def test_tokens_taken_back_leave_no_trace(folder, nodes, seed):
    tokens = prompt(100, seed=seed)
    found = speculate(harness_of(folder, nodes=nodes), tokens, nodes=nodes, seed=seed)
    assert_close(found, expected_logits(saved_v4(folder), tokens)[: len(found)])


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [3, 10])
def test_one_node_more_than_the_rings_are_for_would_be_noticed(folder, nodes):
    """The bound is tight: what is refused at start would be wrong."""
    tokens = prompt(100, seed=1)
    harness = harness_of(folder, nodes=nodes, ring_nodes=nodes - 1)
    found = speculate(harness, tokens, nodes=nodes, seed=1)
    assert (found - expected_logits(saved_v4(folder), tokens)[: len(found)]).abs().max() > 0.01
