"""Fields that this server does not have: values that ask for nothing are accepted."""

import pytest

from outrider.server.http_errors import ApiError
from outrider.server.protocol.chat_protocol import ChatRequest
from outrider.server.protocol.completions_protocol import CompletionRequest
from outrider.server.protocol.neutral_fields import ANYTHING, NEUTRAL, drop_neutral
from outrider.server.protocol.responses_protocol import ResponsesRequest
from outrider.server.protocol.sglang_protocol import GenerateRequest
from outrider.server.protocol.tokenize_protocol import TokenizeRequest

MESSAGES = [{"role": "user", "content": "the tale"}]
ROUTES = {
    "/v1/chat/completions": (ChatRequest, {"messages": MESSAGES, "max_tokens": 2}),
    "/v1/completions": (CompletionRequest, {"prompt": "the", "max_tokens": 2}),
    "/v1/responses": (ResponsesRequest, {"input": "the", "max_output_tokens": 2}),
    "/generate": (GenerateRequest, {"text": "the", "sampling_params": {"max_new_tokens": 2}}),
    "/tokenize": (TokenizeRequest, {"prompt": "the"}),
}


def neutral(known):
    """A neutral value of every field that a route does not have."""
    values = {name: next(iter(NEUTRAL[name]), None) for name in NEUTRAL if name not in known}
    return {name: "any" if value is ANYTHING else value for name, value in values.items()}


@pytest.mark.parametrize("path", ROUTES)
def test_neutral_values_are_accepted(server, path):
    kind, body = ROUTES[path]
    known = kind.model_fields
    for fields in (
        neutral(known),
        dict.fromkeys(neutral(known)),
        {name: [] for name in neutral(known)},
    ):
        response = server.post(path, {**fields, **body})
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("return_routed_experts", True),
        ("lora_path", "adapter"),
        ("bootstrap_room", 0),
        ("use_beam_search", True),
        ("length_penalty", 1.5),
        ("length_penalty", True),
        ("kv_transfer_params", {"do_remote_decode": True}),
    ],
)
def test_a_value_that_would_change_something_is_refused_by_name(server, name, value):
    for path, (_, body) in ROUTES.items():
        response = server.post(path, {**body, name: value})
        assert response.status_code == 400, path
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert name in error["message"]


def test_an_unknown_field_is_refused_even_if_it_is_null(server):
    for path, (_, body) in ROUTES.items():
        response = server.post(path, {**body, "lora_paths": None})
        assert "unknown field 'lora_paths'" in response.json()["error"]["message"]


def test_a_list_for_several_prompts_is_neutral_if_all_of_it_is():
    given = {"lora_path": [None, ""], "return_hidden_states": [False, False], "length_penalty": 1.0}
    assert drop_neutral(given, ()) == {}
    with pytest.raises(ApiError, match="return_hidden_states"):
        drop_neutral({"return_hidden_states": [False, True]}, ())
