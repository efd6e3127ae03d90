"""From SamplingParams to the records the engine runs."""

import pytest

from outrider.errors import RequestError
from outrider.frontend.input_processor import (
    ModelBounds,
    admit_seed,
    child_seed,
    resolve_limits,
    resolve_sampling,
)
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.tokenizer import NoTokenizer
from outrider.wire.row_sampling import MAX_BANNED, Ban, Filters, LogprobsWanted, RowSampling

BOUNDS = ModelBounds(max_context=32, vocab_size=100, eos_ids=frozenset({2}))


def resolved(params, prompt_len=10):
    limits = resolve_limits(params, prompt_len=prompt_len, bounds=BOUNDS)
    sampling = resolve_sampling(params, seed=5, prompt_len=prompt_len, limits=limits, bounds=BOUNDS)
    return sampling, limits


def test_defaults_resolve_to_a_sampling_that_filters_nothing():
    sampling, limits = resolved(SamplingParams())
    assert sampling == RowSampling(seed=5)
    assert (limits.max_tokens, limits.stop_ids) == (16, frozenset({2}))


@pytest.mark.parametrize("asked", [None, 23, 1000])
def test_an_answer_never_outgrows_the_context(asked):
    assert resolved(SamplingParams(max_tokens=asked))[1].max_tokens == 32 - 10


def test_ignoring_the_end_of_sequence_keeps_the_users_own_stop_ids():
    params = SamplingParams(ignore_eos=True, stop_token_ids=[7])
    assert resolved(params)[1].stop_ids == frozenset({7})


def test_min_tokens_bans_every_stop_id_before_its_position():
    sampling, _ = resolved(SamplingParams(min_tokens=4, stop_token_ids=[7]))
    assert sampling.ban == Ban(before=14, tokens=(2, 7))


def test_min_tokens_without_stop_ids_bans_nothing():
    assert resolved(SamplingParams(min_tokens=4, ignore_eos=True))[0].ban == Ban()


def test_minus_one_keeps_every_token_like_zero():
    assert resolved(SamplingParams(top_k=-1))[0].filters == Filters()


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, (False, 0)), (0, (True, 0)), (3, (True, 3))]
)
def test_logprobs_asked(asked, expected):
    chosen, top = expected
    sampling, _ = resolved(SamplingParams(logprobs=asked))
    assert sampling.logprobs == LogprobsWanted(chosen=chosen, top=top)


def test_more_stop_ids_than_the_device_can_ban_are_refused():
    bounds = ModelBounds(max_context=32, vocab_size=1000, eos_ids=frozenset())
    params = SamplingParams(min_tokens=1, stop_token_ids=range(MAX_BANNED + 1))
    limits = resolve_limits(params, prompt_len=1, bounds=bounds)
    with pytest.raises(RequestError, match="at most 128"):
        resolve_sampling(params, seed=1, prompt_len=1, limits=limits, bounds=bounds)


@pytest.mark.parametrize("field", [{"stop_token_ids": [100]}, {"logit_bias": {100: 1.0}}])
def test_ids_outside_the_vocabulary_are_refused(field):
    with pytest.raises(RequestError, match="use ids from 0 to 99"):
        resolved(SamplingParams(**field))


def test_a_missing_seed_is_drawn_and_a_given_one_kept():
    assert admit_seed(SamplingParams(seed=0)) == 0
    drawn = {admit_seed(SamplingParams(seed=seed)) for seed in [None, -1] * 4}
    assert len(drawn) > 1


def test_children_have_seeds_of_their_own_and_the_first_the_users():
    seeds = [child_seed(parent, index) for parent in (7, 8) for index in range(50)]
    assert (seeds[0], seeds[50]) == (7, 8)
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_an_end_of_sequence_outside_the_vocabulary_is_ignored_and_reported(make_frontend, caplog):
    frontend = make_frontend(NoTokenizer(eos_ids=frozenset({-1, 2, 50, 400})))
    assert frontend.inputs.bounds.eos_ids == {2}
    (warning,) = [each.getMessage() for each in caplog.records]
    assert "ids -1, 50, 400" in warning
    assert "generation_config.json" in warning


def test_a_truncated_prompt_still_has_the_text_that_its_answer_follows(frontend):
    prompt = frontend.inputs.render([{"role": "user", "content": "the rider goes ahead"}])
    prepared = frontend.inputs.prepare(prompt, SamplingParams(truncate_prompt_tokens=2))
    assert len(prepared.prompt) == 2
    assert prepared.text is None
    assert prepared.source == prompt
