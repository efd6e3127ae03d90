"""Qwen3-Next and Qwen3.5 against transformers: prompts, chunks, decoding and roll-back agree."""

import random

import pytest
import torch
from support.recurrent import VOCAB, expected_logits, harness_of, prompt

TOLERANCE = 1e-4  # largest difference of any logit, in float32


def assert_close(ours, theirs, *, most=TOLERANCE):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=most)


@pytest.mark.parametrize("length", [1, 3, 4, 37, 100])
def test_a_prompt_has_the_logits_of_transformers(folder, theirs, length):
    tokens = prompt(length, seed=length)
    assert_close(harness_of(folder).run({}, {1: (0, tokens)}), expected_logits(theirs, tokens))


@pytest.mark.parametrize("sizes", [[1] * 9, [5, 3, 1, 8, 17, 2, 30], [16, 16]])
def test_a_prompt_in_chunks_has_the_same_logits(folder, theirs, sizes):
    tokens = prompt(sum(sizes), seed=3)
    harness, found, start = harness_of(folder), [], 0
    for size in sizes:
        found.append(harness.run({}, {1: (start, tokens[start : start + size])}))
        start += size
    assert_close(torch.cat(found), expected_logits(theirs, tokens))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("pad", [1, 3])
def test_decoding_token_by_token_has_the_same_logits(folder, theirs, pad):
    tokens = prompt(40, seed=4)
    harness, right = harness_of(folder, pad=pad), expected_logits(theirs, tokens)
    harness.run({}, {2: (0, tokens[:5])})
    for length in range(5, 40):
        logits = harness.run({2: (length, [tokens[length]])}, {})
        assert_close(logits[0], right[length])


@pytest.mark.parametrize("pad", [1, 4])
def test_rows_of_one_step_know_nothing_of_each_other(folder, theirs, pad):
    """Decoding rows and chunks of several prompts, all at different lengths; one row pauses."""
    texts = {row: prompt(40 + row, seed=row) for row in (1, 2, 3, 4)}
    right = {row: expected_logits(theirs, text) for row, text in texts.items()}
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
    # A chunk after decoding: what was pending comes first.
    logits = harness.run(
        {3: (11, texts[3][11:12])}, {1: (20, texts[1][20:41]), 4: (23, texts[4][23:30])}
    )
    assert_close(logits[0], right[3][11])
    assert_close(logits[pad : pad + 21], right[1][20:41])
    assert_close(logits[pad + 21 : pad + 28], right[4][23:30])
    logits = harness.run({2: (5, texts[2][5:6]), 3: (12, texts[3][12:13])}, {})
    assert_close(logits[:2], torch.stack([right[2][5], right[3][12]]))


def speculate(harness, tokens, *, nodes, seed):
    """Run a text by chains that are right up to a random node; the logits of accepted nodes."""
    rng = random.Random(seed)
    length = rng.randint(1, 12)
    found = [harness.run({}, {3: (0, tokens[:length])})]
    while length + nodes <= len(tokens):
        emitted = rng.randint(1, nodes)  # tokens that stay
        wrong = [rng.randrange(VOCAB) for _ in range(nodes - emitted)]
        width = nodes if wrong or rng.random() < 0.5 else emitted
        logits = harness.run(
            {3: (length, tokens[length : length + emitted] + wrong)}, {}, nodes=width
        )
        found.append(logits[:emitted])
        length += emitted
    return torch.cat(found)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("nodes", [2, 5, 16])
def test_tokens_taken_back_leave_no_trace(folder, theirs, nodes, seed):
    tokens = prompt(100, seed=seed)
    found = speculate(harness_of(folder, nodes=nodes), tokens, nodes=nodes, seed=seed)
    # A state carries the rounding of all tokens before, and these are up to 85.
    assert_close(found, expected_logits(theirs, tokens)[: len(found)], most=2 * TOLERANCE)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("nodes", [3, 10])
def test_a_ring_one_slot_too_short_would_be_noticed(folder, theirs, nodes, monkeypatch):
    from outrider.models.recurrent import recurrent_cache as recurrent

    monkeypatch.setattr(recurrent, "ring_length", lambda window, nodes: window + nodes - 3)
    tokens = prompt(100, seed=1)
    found = speculate(harness_of(folder, nodes=nodes), tokens, nodes=nodes, seed=1)
    assert (found - expected_logits(theirs, tokens)[: len(found)]).abs().max() > 0.01


def test_a_row_that_is_used_again_starts_from_nothing(folder, theirs):
    harness = harness_of(folder, nodes=4)
    for seed in range(3):
        tokens = prompt(30, seed=seed)
        found = speculate(harness, tokens, nodes=4, seed=seed)
        assert_close(found, expected_logits(theirs, tokens)[: len(found)])
