"""Targets with embeddings of NaN, and where their answers must end."""

import math
from dataclasses import replace

from outrider.models.decoder import Decoder
from outrider.ops.sampling.sample_token import NOT_FINITE
from outrider.runtime.row_errors import FAILURES
from outrider.wire.failure import NO_FAILURE
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import MAX_TOKENS, PROMPTS, TREES, Models, sampling_of


def with_bad_tokens(decoder: Decoder, tokens: list[int]) -> Decoder:
    """The same model with embeddings of NaN; most weights are shared."""
    embedding = decoder.embedding.clone()
    embedding[tokens] = math.nan
    return Decoder(decoder.config, replace(decoder._parts, embedding=embedding))


def assert_ends_as_plain_decoding(models: Models, draft: tuple[str, str], shape: Shape) -> None:
    """A token that the target emits is bad: its request fails after it, and no other fails."""
    drafter, tree = draft
    shape = replace(shape, step_tokens=4 * TREES[tree].nodes + 7)
    asked = [
        make_submission(f"r{i}", prompt, sampling_of("greedy", i), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]
    clean = run_all(engine_of(models.target, shape), asked)
    bad = clean["r0"].tokens[4]
    assert not any(bad in prompt for prompt in PROMPTS)
    broken = with_bad_tokens(models.target, [bad])
    engine = engine_of(broken, shape, models.draft(drafter, TREES[tree]))
    got = run_all(engine, asked)
    for name, each in clean.items():
        is_bad = bad in each.tokens[:-1]  # nothing is computed from the last token
        last = each.tokens.index(bad) + 1 if is_bad else MAX_TOKENS
        assert got[name].tokens == each.tokens[:last]
        assert got[name].last.finish == ("error" if is_bad else "length")
        assert got[name].last.failure == (FAILURES[NOT_FINITE] if is_bad else NO_FAILURE)
        assert len(got[name].logprobs) == last
    stats = engine.stats
    assert stats.pages.free == stats.pages.total
    assert stats.faults.failed_steps == 0
