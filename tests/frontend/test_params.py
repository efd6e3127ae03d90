"""What SamplingParams accepts, and what it says about the rest."""

import math
import pickle
from copy import copy, deepcopy
from dataclasses import asdict

import pytest

from outrider import StructuredOutputsParams
from outrider.errors import RequestError
from outrider.frontend.sampling_params import SamplingParams, override

WRONG = [
    ({"n": 0}, "of at least 1"),
    ({"n": True}, "integer"),
    ({"temperature": -1}, "use 0 for greedy"),
    ({"temperature": math.nan}, "temperature"),
    ({"temperature": 1e9}, "at most 100"),
    ({"temperature": "hot"}, "'hot'"),
    ({"top_p": 0}, "above 0"),
    ({"top_p": 1.1}, "at most 1"),
    ({"top_k": -2}, "use 0 to keep"),
    ({"top_k": 1.5}, "integer"),
    ({"min_p": -0.1}, "min_p"),
    ({"seed": 2**63}, "seed"),
    ({"max_tokens": -1}, "at least 0"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 17}, "raise max_tokens"),
    ({"stop": ""}, "non-empty"),
    ({"stop": ["a", ""]}, "non-empty"),
    ({"stop": 7}, "a string or a list"),
    ({"stop": "a", "detokenize": False}, "stop_token_ids"),
    ({"stop_token_ids": 7}, "list of ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"logprobs": 21}, "at most 20"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprob_token_ids": [3]}, "set logprobs=0"),
    ({"logit_bias": [1]}, "map token ids"),
    ({"logit_bias": {"a": 1.0}}, "logit_bias"),
    ({"logit_bias": {1: math.nan}}, "logit_bias"),
    ({"logit_bias": {1: -101}}, "use -100"),
    ({"logit_bias": dict.fromkeys(range(1025), 1)}, "at most 1024"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "above 0"),
    ({"ignore_eos": "yes"}, "true or false"),
]


@pytest.mark.parametrize(("fields", "reason"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_field_is_refused_with_one_line_that_names_the_fix(fields, reason):
    with pytest.raises(RequestError, match=reason) as caught:
        SamplingParams(**fields)
    assert "\n" not in str(caught.value)


def test_the_defaults_are_those_of_vllm():
    params = SamplingParams()
    assert (params.n, params.temperature, params.max_tokens) == (1, 1.0, 16)
    assert (params.top_k, params.top_p, params.min_p) == (0, 1.0, 0.0)
    assert params.seed is None
    assert params.stops == ()


def test_bounds_are_inclusive():
    SamplingParams(temperature=0, top_p=1, top_k=-1, min_p=1, seed=2**63 - 1, logprobs=20)
    SamplingParams(presence_penalty=-2, frequency_penalty=2, max_tokens=None, min_tokens=99)


def test_one_stop_string_needs_no_list():
    assert SamplingParams(stop="end").stops == ("end",)
    assert SamplingParams(stop=["a", "b"]).stops == ("a", "b")


def test_json_overrides_name_token_ids_as_strings():
    changed = override(SamplingParams(seed=3), {"top_k": 5, "logit_bias": {"7": -100}})
    assert (changed.seed, changed.top_k, changed.logit_bias) == (3, 5, {7: -100})


def test_an_unknown_override_is_refused_by_name():
    with pytest.raises(RequestError, match="unknown sampling parameter 'topk'"):
        override(SamplingParams(), {"topk": 5})


def test_the_fields_are_the_arguments():
    params = SamplingParams(seed=3, speculation={"steps": 2}, structured={"regex": "a+"})
    assert SamplingParams(**asdict(params)) == params
    assert params.draft_budget.steps == 2


def test_copies_and_pickles_keep_what_was_parsed():
    params = SamplingParams(logit_bias={5: 1.0}, structured={"regex": "a+"})
    for made in (copy(params), deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert made == params
        assert made.bias_entries == ((5, 1.0),)
        assert made.grammar_spec.kind == "regex"


@pytest.mark.parametrize(
    "given",
    [
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"structured_outputs": StructuredOutputsParams(choice=["yes", "no"])},
        {"guided_decoding": {"choice": ["yes", "no"]}},
    ],
)
def test_the_form_of_an_answer_can_be_given_in_vllms_words(given):
    ours = SamplingParams(structured={"choice": ["yes", "no"]})
    assert SamplingParams(**given).grammar_spec == ours.grammar_spec


@pytest.mark.parametrize(
    "given",
    [
        {"best_of": None},
        {"best_of": 1},
        {"spaces_between_special_tokens": True},
        {"output_kind": 2},
        {"structured_outputs": None},
    ],
)
def test_arguments_of_vllm_that_change_nothing_are_accepted(given):
    assert SamplingParams(**given) == SamplingParams()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"best_of": 3}, "best_of=3 is not supported here"),
        ({"spaces_between_special_tokens": False}, "leave it out"),
        ({"structured_outputs": 3}, "StructuredOutputsParams or a dict"),
        ({"temprature": 1}, "did you mean temperature"),
        ({"temprature": None}, "did you mean temperature"),
        ({"structured": "json_object", "guided_decoding": {"json": {}}}, "are the same"),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(given, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**given)
