"""`/v1/messages` over Anthropic's client, and `/api/...` over ollama's."""

import anthropic
import httpx
import ollama
import pytest
from support.served import ServerProcess, wait_for
from support.speaker import write_speaker

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SCRIPT = [
    "<think>",
    "hm",
    "</think>",
    "Let me",
    " see.",
    '\n<tool_call>{"name": "add", ',
    '"arguments": {"a": 1}}</tool_call>',
]
KEY = "secret"
ASKED = {"model": "tiny", "max_tokens": 60, "extra_body": {"temperature": 0}}
USER = {"role": "user", "content": "add one"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speaker")
    write_speaker(folder, SCRIPT, TEMPLATE, added=("<think>", "</think>"))
    log = tmp_path_factory.mktemp("log") / "stderr"
    flags = ("--served-model-name", "tiny", "--draft", "ngram", "--api-key", KEY)
    running = ServerProcess(folder, log, *flags, "--reasoning-parser", "qwen3")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def claude(speaker):
    return anthropic.Anthropic(base_url=speaker.url, api_key=KEY, max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def llama(speaker):
    return ollama.Client(host=speaker.url, headers={"Authorization": f"Bearer {KEY}"})


def test_a_message_has_thinking_text_and_tool_use(claude):
    answer = claude.messages.create(**ASKED, messages=[USER], system="Be brief.", tools=[TOOL])
    thinking, text, call = answer.content
    assert (thinking.thinking, text.text) == ("hm", "Let me see.")
    assert (call.name, call.input) == ("add", {"a": 1})
    assert answer.stop_reason == "tool_use"
    assert answer.usage.output_tokens == len(SCRIPT) + 1


def test_a_stream_adds_up_to_the_same_message(claude):
    with claude.messages.stream(**ASKED, messages=[USER], tools=[TOOL]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    whole = claude.messages.create(**ASKED, messages=[USER], tools=[TOOL])
    for streamed, given in zip(final.content, whole.content, strict=True):
        assert streamed.to_dict() | {"id": 0} == given.to_dict() | {"id": 0}
    assert final.stop_reason == whole.stop_reason == "tool_use"


def test_results_of_tools_come_back(claude):
    first = claude.messages.create(**ASKED, messages=[USER], tools=[TOOL])
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "2"}
    turns = [
        USER,
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
    ]
    answer = claude.messages.create(**ASKED, messages=turns, tools=[TOOL])
    assert answer.content[1].text == "Let me see."
    fewer = claude.messages.count_tokens(model="tiny", messages=[USER]).input_tokens
    assert fewer < claude.messages.count_tokens(model="tiny", messages=turns).input_tokens


def test_ends_have_anthropics_names(claude):
    plain = claude.messages.create(**ASKED, messages=[USER])
    assert plain.stop_reason == "end_turn"
    assert (
        claude.messages.create(**ASKED | {"max_tokens": 2}, messages=[USER]).stop_reason
        == "max_tokens"
    )
    stopped = claude.messages.create(**ASKED, messages=[USER], stop_sequences=["see"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "see")
    thought = claude.messages.create(
        **ASKED, messages=[USER], thinking={"type": "enabled", "budget_tokens": 1024}
    )
    assert thought.content[0].thinking == "hm"


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 5}]}]},
        {"temperature": -1},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}},
        {"mcp_servers": [1]},
    ],
)
def test_a_wrong_message_is_refused(claude, fields):
    body = {"model": "tiny", "max_tokens": 60, "messages": [USER], **fields}
    with pytest.raises(anthropic.BadRequestError):
        claude.post("/v1/messages", body=body, cast_to=object)


def test_the_key_is_needed(speaker):
    wrong = anthropic.Anthropic(base_url=speaker.url, api_key="other", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(**ASKED, messages=[USER])
    assert speaker.get("/ping").status_code == 200


def test_ollama_chats_whole_and_in_lines(llama):
    options = {"temperature": 0, "num_predict": 60, "num_ctx": 2048}
    whole = llama.chat("tiny", [USER], tools=[FUNCTION], options=options)
    assert (whole.message.thinking, whole.message.content) == ("hm", "Let me see.")
    (call,) = whole.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("add", {"a": 1})
    assert (whole.done, whole.eval_count) == (True, len(SCRIPT) + 1)
    lines = list(llama.chat("tiny:latest", [USER], options=options, stream=True))
    assert "".join(line.message.content or "" for line in lines).startswith("Let me see.")
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    again = [USER, whole.message, {"role": "tool", "content": "2", "tool_name": "add"}]
    assert llama.chat("tiny", again, options=options).message.content.startswith("Let me see.")


def test_ollama_generates_and_lists(llama):
    answer = llama.generate("tiny", "why", system="Be brief.", options={"temperature": 0})
    assert answer.response.startswith("Let me see.")
    assert answer.done_reason == "stop"
    assert [model.model for model in llama.list().models] == ["tiny"]
    assert llama.show("tiny").capabilities == ["completion", "tools"]
    with pytest.raises(ollama.ResponseError, match="mirostat is not supported"):
        llama.generate("tiny", "why", options={"mirostat": 2})
    with pytest.raises(ollama.ResponseError, match="no model"):
        llama.generate("other", "why")


def test_a_request_is_aborted_by_its_name(server):
    body = {"prompt": "the", "max_tokens": 3500, "ignore_eos": True, "request_id": "mine"}
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json={**body, "stream": True}, timeout=30
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert server.post("/abort_request", {"rid": "other"}).json() == {"aborted": 0}
        assert server.post("/abort_request", {"rid": "mine"}).json() == {"aborted": 1}
        assert any('"finish_reason":"abort"' in line for line in lines)
    assert server.post("/abort_request", {}).status_code == 400
    assert not server.wait_until_idle()["has_leak"]


def test_the_prefix_cache_can_be_reset(server):
    body = {"prompt": "a prompt that is cached " * 8, "max_tokens": 1}

    def cached():
        answer = server.post("/v1/completions", body).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    cached()
    assert cached() > 0
    wait_for(lambda: server.invariants["is_idle"])
    assert server.post("/reset_prefix_cache", {}).status_code == 200
    assert cached() == 0
