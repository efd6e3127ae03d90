"""The bodies that vllm-router sends to a prefill server, by its version and by the route."""

import pytest

from outrider.config.engine_config import DisaggregationConfig
from outrider.errors import RequestError
from outrider.frontend.call_cost import PromptRequest
from outrider.frontend.prompts import TextPrompt
from outrider.server.parsers.answer_parsers import NO_PARSERS
from outrider.server.protocol.chat_protocol import ChatRequest
from outrider.server.protocol.completions_protocol import CompletionRequest
from outrider.server.protocol.messages_protocol import MessagesRequest
from outrider.server.protocol.responses_protocol import ResponsesRequest
from outrider.server.protocol.sglang_protocol import GenerateRequest

PREFILL = DisaggregationConfig(mode="prefill", host="10.0.0.7", port=8998)
PROMPT = TextPrompt("the tale")
TURNS = [{"role": "user", "content": "the tale"}]
NONE_YET = dict.fromkeys(
    ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"), None
)
ASKED = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False, **NONE_YET}}
ONE = {"max_tokens": 1, "stream": False}
LEAST = {"min_tokens": 1}  # added by 0.1.17, except in responses
NATIVE = {"text": "the tale", "sampling_params": {"temperature": 0.0, "max_new_tokens": 16}}
LONGER = {"text": "the tale", "sampling_params": {"min_tokens": 5}}  # it keeps the client's
RESPONSE = {"input": "the tale", "max_output_tokens": 1, "stream": False}
FORMS = {
    "chat of 0.1.16": (ChatRequest, {"messages": TURNS, **ONE}),
    "chat of 0.1.17": (ChatRequest, {"messages": TURNS, **ONE, **LEAST}),
    "completion of 0.1.16": (CompletionRequest, {"prompt": "the tale", **ONE}),
    "completion of 0.1.17": (CompletionRequest, {"prompt": "the tale", **ONE, **LEAST}),
    "generate of 0.1.16": (GenerateRequest, {**NATIVE, **ONE}),
    "generate of 0.1.17": (GenerateRequest, {**NATIVE, **ONE, **LEAST}),
    "generate with a minimum": (GenerateRequest, {**LONGER, **ONE, **LEAST}),
    "message of 0.1.16": (MessagesRequest, {"model": "tiny", "messages": TURNS, **ONE}),
    "message of 0.1.17": (MessagesRequest, {"model": "tiny", "messages": TURNS, **ONE, **LEAST}),
    "response": (ResponsesRequest, RESPONSE),
    "response with a minimum": (ResponsesRequest, {**RESPONSE, "min_tokens": 5}),
}


def params_of(body):
    """The sampling of the one prompt of a body of any route."""
    if isinstance(body, GenerateRequest):
        return body.params()[0]
    if isinstance(body, ResponsesRequest):
        return body.params(NO_PARSERS, PROMPT)
    return body.params()


def read(kind, fields):
    body = kind.model_validate(fields)
    return body.in_chat() if isinstance(body, MessagesRequest) else body


@pytest.mark.fast_cases(len(FORMS))
@pytest.mark.parametrize("form", FORMS)
def test_a_prefill_server_offers_what_any_version_asks_for(form):
    kind, fields = FORMS[form]
    body = read(kind, {**fields, **ASKED})
    (part,) = body.split(PREFILL, [PromptRequest(prompt=PROMPT, params=params_of(body))])
    assert (part.prompt, part.transfer.kind) == (PROMPT, "offer")
    assert (part.transfer.host, part.transfer.port) == ("10.0.0.7", 8998)
    assert (part.params.max_tokens, part.params.min_tokens) == (1, 0)


@pytest.mark.parametrize("params", [None, {"do_remote_prefill": True}])
def test_the_server_that_decodes_keeps_the_minimum(params):
    fields = {"messages": TURNS, "min_tokens": 5, "kv_transfer_params": params}
    assert read(ChatRequest, {**fields, "max_tokens": 9}).params().min_tokens == 5
    with pytest.raises(RequestError, match="min_tokens"):
        read(ChatRequest, {**fields, "max_tokens": 1}).params()
