"""Parameters that prompts of one `/generate` call share are made once."""

import pytest

from outrider.errors import RequestError
from outrider.server.protocol.sglang_protocol import GenerateRequest

BIAS = {str(token): 1.0 for token in range(300)}


def num_made(**fields):
    params = GenerateRequest(text=["a"] * 6, **fields).params()
    assert len(params) == 6
    return len({id(each) for each in params})


def test_equal_parameters_are_one_object():
    assert num_made(sampling_params={"n": 128, "logit_bias": BIAS}) == 1
    assert num_made(return_logprob=True, token_ids_logprob=[1, 2], top_logprobs_num=3) == 1
    assert num_made(return_logprob=[True, False] * 3) == 2
    assert num_made(return_logprob=True, top_logprobs_num=[0, 1, 2] * 2) == 3
    assert num_made(sampling_params=[{"n": 1}, {"n": 2}] * 3) == 6


@pytest.mark.parametrize("stop", [["a"] * 65, "a" * 1025, ["a", "a" * 1025]])
def test_stop_strings_are_few_and_short(stop):
    with pytest.raises(RequestError, match="64" if len(stop) == 65 else "1024"):
        num_made(sampling_params={"stop": stop})


def test_each_prompt_has_its_own_report():
    body = GenerateRequest(
        text=["a", "b", "c"], return_logprob=[True, False, True], top_logprobs_num=[1, 2, 3]
    )
    assert [params.logprobs for params in body.params()] == [1, None, 3]
