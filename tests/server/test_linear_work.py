"""What a client or a model can make long is handled in linear time and with bounded memory."""

import json
import math

import pytest
from pydantic import ValidationError

from outrider.engine.failure_reason import failure_reason
from outrider.frontend.output_json import finite
from outrider.server.protocol.completions_protocol import CompletionRequest
from outrider.server.protocol.responses_protocol import ResponsesRequest


def test_calls_of_one_message_are_added_in_place():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    body = ResponsesRequest(input=[call] * 20_000)
    (turn,) = body.turns
    assert len(turn["tool_calls"]) == 20_000


@pytest.mark.parametrize("prompt", [[1.5] * 1000, ["a", *[1] * 1000], [[1.5] * 9] * 1000])
def test_a_list_of_wrong_values_is_one_error_for_each_type_it_may_have(prompt):
    with pytest.raises(ValidationError) as refused:
        CompletionRequest(prompt=prompt)
    assert refused.value.error_count() <= 4


def test_paths_are_removed_from_a_reason_however_long_a_word_is():
    assert failure_reason(ValueError("no /a/b.py in c:\\d here")).endswith(": no ... in ... here")
    assert len(failure_reason(ValueError("a" * 10**6))) < 10**4


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e9])
def test_a_logprob_that_json_cannot_hold_is_the_least_one(value):
    assert json.loads(json.dumps(finite(value), allow_nan=False)) == -9999.0
    assert finite(-0.5) == -0.5
