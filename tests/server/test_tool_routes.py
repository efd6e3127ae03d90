"""Tools over HTTP: calls that are forced, calls that the model makes itself, and refusals."""

import json

import httpx
import openai
import pytest
from support.served import ServerProcess
from support.speaker import write_speaker

from outrider import LLM
from outrider.server.protocol.chat_protocol import ChatRequest
from outrider.server.protocol.tools import call_schema

pytest.importorskip("xgrammar")

# What the model answers to everything, token by token; no token may come twice.
SCRIPT = [
    "Let me",
    " see.",
    "\n\n<tool",
    "_call>",
    '\n{"name": "add", ',
    '"arguments": {"a": 1}}',
    "\n</tool_call>",
    "<tool_call>",  # a special token, as some models have it
    '{"name": "stop_it", "arguments": {}}',
    "</tool_call>",
]
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    # As the default model's template does it, which fails with a content of none.
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}, "how": {"$ref": "#/$defs/how"}},
    "required": ["a", "how"],
    "$defs": {"how": {"enum": ["fast", "slow"]}},
}
ADD = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}
STOP_IT = {"type": "function", "function": {"name": "stop_it", "description": "Stops."}}
ONLY_ADD = {"type": "function", "function": {"name": "add"}}
MESSAGES = [{"role": "user", "content": "tell me the tale"}]
ASKED = {"model": "tiny", "messages": MESSAGES, "max_tokens": 400, "tools": [ADD, STOP_IT]}
SCRIPTED = {**ASKED, "temperature": 0}
FORCED = {**ASKED, "temperature": 1, "seed": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speaker")
    write_speaker(folder, SCRIPT, TEMPLATE, special=("<tool_call>",))
    return folder


@pytest.fixture(scope="module")
def client(folder, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "stderr"
    flags = ("--served-model-name", "tiny", "--draft", "ngram", "--no-adaptive")
    server = ServerProcess(folder, log, *flags, "--kv-tokens", "16384")
    yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30)
    assert server.stop() == 0


def streamed(client, **asked):
    """Content, calls as [id, name, arguments], and the finish reason, as a client adds them up."""
    content, calls, finish = "", [], None
    for chunk in client.chat.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        for part in choice.delta.tool_calls or ():
            if part.id:
                assert part.type == "function"
                assert part.index == len(calls)
                calls.append([part.id, part.function.name, ""])
            calls[part.index][2] += part.function.arguments
        finish = choice.finish_reason or finish
    return content, calls, finish


def whole(client, **asked):
    (choice,) = client.chat.completions.create(**asked).choices
    calls = [
        [call.id, call.function.name, call.function.arguments]
        for call in choice.message.tool_calls or ()
    ]
    return choice.message.content, calls, choice.finish_reason


def without_ids(calls):
    return [call[1:] for call in calls]


@pytest.mark.parametrize("ask", [whole, streamed])
def test_the_model_calls_by_itself_and_text_around_the_calls_is_content(client, ask):
    content, calls, finish = ask(client, **SCRIPTED)
    assert content == "Let me see."
    assert without_ids(calls) == [["add", '{"a": 1}'], ["stop_it", "{}"]]
    assert len({call[0] for call in calls}) == 2
    assert all(call[0].startswith("call_") for call in calls)
    assert finish == "tool_calls"


@pytest.mark.parametrize("ask", [whole, streamed])
def test_without_parallel_calls_there_is_one(client, ask):
    _, calls, finish = ask(client, **SCRIPTED, parallel_tool_calls=False)
    assert without_ids(calls) == [["add", '{"a": 1}']]
    assert finish == "tool_calls"


@pytest.mark.parametrize("ask", [whole, streamed])
@pytest.mark.parametrize("asked", [{"tool_choice": "none"}, {"tools": []}], ids=str)
def test_where_nothing_may_be_called_everything_is_content(client, ask, asked):
    shown = "".join(piece for piece in SCRIPT if piece != "<tool_call>")
    assert ask(client, **SCRIPTED | asked) == (shown, [], "stop")


@pytest.mark.parametrize("ask", [whole, streamed])
def test_a_call_that_was_cut_stays_content(client, ask):
    content, calls, finish = ask(client, **SCRIPTED | {"max_tokens": 5})
    assert content == "".join(SCRIPT[:5])
    assert (calls, finish) == ([], "length")


def check_call(name, arguments):
    assert name in ("add", "stop_it")
    if name == "add":
        arguments = json.loads(arguments)
        assert arguments["a"] in (1, 2)
        assert arguments["how"] in ("fast", "slow")
    else:
        assert json.loads(arguments) == {}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("ask", [whole, streamed])
@pytest.mark.parametrize("choice", ["required", ONLY_ADD], ids=["required", "named"])
@pytest.mark.parametrize("seed", [5, 6])
@pytest.mark.slow
def test_a_forced_call_follows_the_schema_of_its_function(client, ask, choice, seed):
    content, calls, finish = ask(client, **FORCED | {"seed": seed}, tool_choice=choice)
    assert not content
    ((_, name, arguments),) = calls
    check_call(name, arguments)
    assert choice == "required" or name == "add"
    assert finish == "tool_calls"


@pytest.mark.slow
def test_a_forced_call_is_the_same_whole_and_streamed(client):
    one, other = (ask(client, **FORCED, tool_choice="required") for ask in (whole, streamed))
    assert without_ids(one[1]) == without_ids(other[1])
    assert one[0] is None


@pytest.mark.slow
@pytest.mark.parametrize("ask", [whole, streamed])
def test_a_forced_call_that_was_cut_says_so(client, ask):
    _, ((_, _, complete),), _ = ask(client, **FORCED, tool_choice=ONLY_ADD)
    for max_tokens in range(1, 400):
        asked = FORCED | {"max_tokens": max_tokens}
        content, calls, finish = ask(client, **asked, tool_choice=ONLY_ADD)
        assert finish == "length"
        assert bool(content) != bool(calls)
        if calls and len(calls[0][2]) > 3:
            break
    assert complete.startswith(calls[0][2])


def test_every_choice_has_its_own_call(client):
    answer = client.chat.completions.create(**FORCED, tool_choice="required", n=3)
    calls = [call for choice in answer.choices for call in choice.message.tool_calls]
    assert len({call.id for call in calls}) == 3
    for call in calls:
        check_call(call.function.name, call.function.arguments)


def test_the_template_gets_the_tools_and_the_calls_before(client, folder):
    call = {"id": "call_1", "type": "function"}
    history = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**call, "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
    ]
    answer = client.chat.completions.create(**SCRIPTED | {"messages": history})
    # Offline, arguments are objects, as templates want them.
    history[1]["tool_calls"][0]["function"]["arguments"] = {"a": 1}
    llm = LLM(folder, draft="none", device="cpu")
    expected = llm.chat(history, tools=[ADD, STOP_IT], use_tqdm=False)[0]
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert '[{"type": "function", "function": {"name": "add"' in expected.prompt
    assert 'assistant\n{"a": 1}<|im_end|>' in expected.prompt


@pytest.mark.parametrize("speculative", ["off", None])
def test_a_call_of_a_strict_tool_follows_its_schema(client, speculative):
    strict = {"type": "function", "function": {**ADD["function"], "strict": True}}
    asked = {**SCRIPTED, "tools": [strict, STOP_IT], "extra_body": {"speculative": speculative}}
    answer = client.chat.completions.create(**asked).choices[0]
    assert answer.message.content == "Let me see."
    call = answer.message.tool_calls[0].function
    assert call.name == "add"
    assert json.loads(call.arguments)["how"] in ("fast", "slow")  # the script leaves it out


def test_a_message_with_calls_can_be_sent_back(client):
    first = client.chat.completions.create(**FORCED, tool_choice="required").choices[0].message
    assert first.content is None
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "2"} for call in first.tool_calls
    ]
    answer = client.chat.completions.create(**SCRIPTED | {"messages": [*MESSAGES, first, *results]})
    assert answer.choices[0].message.content == "Let me see."


@pytest.mark.parametrize(
    "calls", [None, 5, [], [5], [{}], [{"function": 5}], [{"function": {"arguments": '{"a'}}]]
)
def test_calls_of_any_other_shape_reach_the_template_as_they_are(calls):
    message = {"role": "assistant", "content": "a", "tool_calls": calls}
    assert ChatRequest(messages=[message]).turns == [message]


def test_references_of_a_schema_move_with_it():
    body = ChatRequest(messages=MESSAGES, tools=[ADD, STOP_IT])
    schema = call_schema(body.tools, "required")
    assert schema["$defs"]["add"]["properties"]["how"] == {"$ref": "#/$defs/add/$defs/how"}
    assert schema["$defs"]["stop_it"] == {"type": "object", "properties": {}}
    assert list(call_schema(body.tools, body.tool_choice)["$defs"]) == ["add", "stop_it"]


def function(**fields):
    return {"type": "function", "function": {"name": "f", **fields}}


FORM = {"type": "json_object"}
WRONG = {
    "a tool of another type": {"tools": [{"type": "retrieval"}]},
    "a tool without a function": {"tools": [{"type": "function"}]},
    "no name": {"tools": [function(name="")]},
    "a name with a blank": {"tools": [function(name="a b")]},
    "a name with a newline": {"tools": [function(name="a\n")]},
    "a long name": {"tools": [function(name="a" * 65)]},
    "parameters of another type": {"tools": [function(parameters=[1])]},
    "parameters that are no object": {"tools": [function(parameters={"type": "string"})]},
    "an unknown field": {"tools": [function(paramters={})]},
    "two of one name": {"tools": [function(), function()]},
    "too many": {"tools": [function(name=f"f{number}") for number in range(129)]},
    "a choice that is none": {"tool_choice": "sometimes"},
    "a choice of another type": {"tool_choice": 5},
    "a choice of a stranger": {"tool_choice": function()},
    "required without tools": {"tools": [], "tool_choice": "required"},
    "named without tools": {"tools": None, "tool_choice": ONLY_ADD},
    "a format beside tools": {"response_format": FORM},
    "a form beside a forced call": {"tool_choice": "required", "response_format": FORM},
    "a regex beside tools": {"extra_body": {"structured_outputs": {"regex": "a"}}},
    "tools behind the back": {"extra_body": {"chat_template_kwargs": {"tools": 5}}},
    "a schema of nonsense": {
        "tools": [function(parameters={"properties": {"a": {"type": "nonsense"}}})],
        "tool_choice": "required",
    },
    "a schema too long": {
        "tools": [function(parameters={"properties": {"a" * 70_000: {}}})],
        "tool_choice": "required",
    },
    "a reference to nowhere": {
        "tools": [function(parameters={"$ref": "#/$defs/none"})],
        "tool_choice": "required",
    },
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_make_no_sense_are_refused_before_any_work(client, name, stream):
    asked = {"tool_choice": "auto", **ASKED} | WRONG[name]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked, stream=stream)
    assert refused.value.body["message"]


def test_a_grammar_is_accepted_where_nothing_may_be_called(client):
    regex = {"structured_outputs": {"regex": "[ab]{3}"}}
    content, calls, _ = whole(client, **FORCED, tool_choice="none", extra_body=regex)
    assert set(content) <= set("ab")
    assert calls == []


FLAT_ADD = {"type": "function", "name": "add", "parameters": PARAMETERS, "strict": False}
FLAT_STOP = {"type": "function", "name": "stop_it", "description": "Stops."}
RESPONSE = {
    "model": "tiny",
    "input": "tell me the tale",
    "max_output_tokens": 400,
    "tools": [FLAT_ADD, FLAT_STOP],
}


def whole_response(client, **asked):
    """The response, and its items as (type, content)."""
    response = client.responses.create(**asked)
    return response, [said_by(item) for item in response.output]


def streamed_response(client, **asked):
    """The same, from the events alone."""
    items, text = {}, {}
    for event in client.responses.create(**asked, stream=True):
        if event.type == "response.output_item.added":
            assert event.output_index == len(items)
            items[event.output_index], text[event.item.id] = event.item, ""
        elif event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
            text[event.item_id] += event.delta
        elif event.type == "response.output_item.done":
            said = said_by(event.item)
            assert said[-1] == text[event.item.id]
            items[event.output_index] = said
    assert [said_by(item) for item in event.response.output] == list(items.values())
    return event.response, list(items.values())


def said_by(item):
    if item.type == "message":
        return item.type, "".join(part.text for part in item.content)
    assert item.call_id.startswith("call_")
    return item.type, item.name, item.arguments


@pytest.mark.parametrize("ask", [whole_response, streamed_response])
def test_a_response_has_its_calls_as_items(client, ask):
    response, items = ask(client, **RESPONSE, temperature=0)
    assert items == [
        ("message", "Let me see."),
        ("function_call", "add", '{"a": 1}'),
        ("function_call", "stop_it", "{}"),
    ]
    assert response.status == "completed"
    assert [tool.name for tool in response.tools] == ["add", "stop_it"]


@pytest.mark.parametrize("ask", [whole_response, streamed_response])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "add"}])
def test_a_forced_call_of_a_response_follows_its_schema(client, ask, choice):
    seeded = {"temperature": 1, "tool_choice": choice, "extra_body": {"seed": 5}}
    _, items = ask(client, **RESPONSE, **seeded)
    ((kind, name, arguments),) = items
    assert kind == "function_call"
    if name == "add":
        assert set(json.loads(arguments)) == {"a", "how"}
    assert name == "add" or choice == "required"


def test_a_response_without_a_choice_of_tools_is_text(client):
    _, items = whole_response(client, **RESPONSE, temperature=0, tool_choice="none")
    (message,) = items
    assert message[0] == "message"
    assert "<tool" in message[1]


def test_calls_and_their_results_come_back_as_input(client):
    items = [
        {"role": "user", "content": "add"},
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "call_2", "name": "add", "arguments": '{"a": 2}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "3"},
    ]
    messages = [
        {"role": "user", "content": "add"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": f"call_{n}", "type": "function"}
                | {"function": {"name": "add", "arguments": f'{{"a": {n}}}'}}
                for n in (1, 2)
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    response = client.responses.create(**{**RESPONSE, "input": items, "max_output_tokens": 1})
    tools = [{"type": "function", "function": {**ADD["function"], "strict": False}}, STOP_IT]
    asked = {**ASKED, "messages": messages, "tools": tools, "max_tokens": 1}
    chat = client.chat.completions.create(**asked)
    assert response.usage.input_tokens == chat.usage.prompt_tokens


WRONG_RESPONSE_TOOLS = {
    "a tool of another kind": {"tools": [{"type": "web_search"}]},
    "a tool in the envelope of a chat": {"tools": [ADD]},
    "a choice that is not there": {"tool_choice": {"type": "function", "name": "mul"}},
    "two of one name": {"tools": [FLAT_ADD, FLAT_ADD]},
    "a form beside tools": {"text": {"format": {"type": "json_object"}}},
    "no tokens": {"max_output_tokens": 0},
}


@pytest.mark.parametrize("name", WRONG_RESPONSE_TOOLS)
def test_tools_of_a_response_that_make_no_sense_are_refused(client, name):
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**{**RESPONSE, **WRONG_RESPONSE_TOOLS[name]})


def test_tools_are_tokenised_as_a_chat_with_them_is(client):
    base = str(client.base_url).removesuffix("/v1/")
    body = {"messages": MESSAGES, "tools": [ADD, STOP_IT]}
    tokenised = httpx.post(f"{base}/tokenize", json=body).json()
    chat = client.chat.completions.create(**{**ASKED, "max_tokens": 1})
    assert tokenised["count"] == chat.usage.prompt_tokens
    bare = httpx.post(f"{base}/tokenize", json={"messages": MESSAGES}).json()
    assert bare["count"] < tokenised["count"]
    closed = httpx.post(
        f"{base}/tokenize",
        json={**body, "chat_template_kwargs": {"add_generation_prompt": False}},
    ).json()
    assert closed["count"] < tokenised["count"]
    for wrong in ({"chat_template_kwargs": {"tools": []}}, {"tools": [ADD, ADD]}):
        assert httpx.post(f"{base}/tokenize", json={**body, **wrong}).status_code == 400
