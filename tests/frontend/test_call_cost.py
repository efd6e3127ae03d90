"""What a call costs is counted before anything is built for it, and equal parts are shared."""

import pytest

from outrider import LLM
from outrider.errors import RequestError
from outrider.frontend.call_cost import CallLimits, PromptRequest, check_call
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.sampling_params import SamplingParams

LIMITS = CallLimits(outputs=8, values=100, logprobs=50)
CONTEXT = 40


def refusal(*requests, limits=LIMITS):
    given = [PromptRequest(prompt=prompt, params=params) for prompt, params in requests]
    try:
        check_call(given, limits, max_context=CONTEXT)
    except RequestError as error:
        return str(error)
    return ""


def ids(num):
    return TokenPrompt((5,) * num)


def test_a_call_at_its_limits_is_allowed():
    bias, stops = {7: 1.0, 8: 1.0}, {"stop": ["ab", "c"], "stop_token_ids": [1, 2, 3]}
    params = SamplingParams(n=4, logit_bias=bias, **stops)
    assert refusal((ids(17), params)) == ""  # 4 * (17 + 2 + 3 + 3) = 100
    assert refusal((ids(1), SamplingParams(n=8))) == ""
    scores = SamplingParams(n=2, logprobs=4, max_tokens=5)
    assert refusal((ids(1), scores)) == ""  # 2 * 5 * (1 + 4) = 50


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([(ids(1), SamplingParams(n=9))], "9 answers"),
        ([(ids(1), SamplingParams(n=3))] * 3, "9 answers"),
        ([(ids(17), SamplingParams(n=4, logit_bias=dict.fromkeys(range(9), 1.0)))], "104 values"),
        ([(ids(21), SamplingParams(n=4, stop="abcdef"))], "108 values"),
        ([(ids(21), SamplingParams(n=4, stop_token_ids=[1] * 9))], "120 values"),
        ([(ids(26), SamplingParams()), (ids(25), SamplingParams(n=3))], "101 values"),
        ([(TextPrompt("the" * 9), SamplingParams(n=4))], "108 values"),
        ([(ids(1), SamplingParams(n=2, logprobs=4, max_tokens=6))], "60 log-prob"),
        ([(ids(1), SamplingParams(logprobs=1, max_tokens=None))], "78 log-prob"),
        ([(ids(20), SamplingParams(prompt_logprobs=2))], "60 log-prob"),
        (
            [(ids(1), SamplingParams(logprobs=0, max_tokens=20, logprob_token_ids=[1, 2]))],
            "60 log-prob",
        ),
    ],
)
def test_a_call_beyond_a_limit_is_refused_with_its_cost(requests, reason):
    message = refusal(*requests)
    assert reason in message
    assert "; " in message  # and what to do


def test_a_prompt_counts_no_more_tokens_than_the_context_holds():
    """A longer one is refused for its length, by another check."""
    assert refusal((TextPrompt("a" * 10**6), SamplingParams(n=2))) == ""


def test_the_cost_is_counted_without_making_anything_for_each_output():
    class Counted(tuple):
        num_reads = 0

        def __iter__(self):
            Counted.num_reads += 1
            return super().__iter__()

    params = SamplingParams(n=1024, logit_bias=dict.fromkeys(range(300), 1.0))
    requests = [PromptRequest(prompt=TokenPrompt(Counted((5,))), params=params)] * 1024
    with pytest.raises(RequestError, match="1048576 answers"):
        check_call(requests, LIMITS, max_context=CONTEXT)
    assert not Counted.num_reads


def test_all_outputs_of_all_prompts_share_one_bias(frontend):
    params = SamplingParams(n=3, max_tokens=1, logit_bias={7: 1.0, 5: -1.0})
    inputs = frontend.inputs
    prepared = [inputs.prepare(TokenPrompt((token,)), params) for token in (3, 4)]
    samplings = [sampling for each in prepared for sampling in each.samplings]
    assert len(samplings) == 6
    assert samplings[0].bias == ((5, -1.0), (7, 1.0))
    assert len({id(sampling.bias) for sampling in samplings}) == 1
    assert len({sampling.seed for sampling in prepared[0].samplings}) == 3


def test_prompts_of_one_offline_call_share_their_parameters(model_folder, monkeypatch):
    llm = LLM(model_folder, draft="none", device="cpu")
    seen, prepare = [], llm.frontend.inputs.prepare

    def note(prompt, params, *others):
        seen.append(params)
        return prepare(prompt, params, *others)

    monkeypatch.setattr(llm.frontend.inputs, "prepare", note)
    llm.generate([[3], [4], [5]], SamplingParams(max_tokens=1), use_tqdm=False)
    assert len({id(params) for params in seen}) == 1
