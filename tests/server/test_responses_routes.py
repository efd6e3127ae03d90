"""OpenAI's newer API, with its own client."""

import pytest

from outrider import SamplingParams

NO_END = {"ignore_eos": True}  # an answer that ends at its first token is no item


def test_a_response_is_the_offline_chat(client, llm):
    asked = client.responses.create(
        model="tiny",
        instructions="be brief",
        input="the tale",
        max_output_tokens=20,
        extra_body={"seed": 9},
    )
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "the tale"},
    ]
    params = SamplingParams(max_tokens=20, seed=9)
    expected = llm.chat(messages, params, use_tqdm=False)[0]
    assert asked.output_text == expected.outputs[0].text
    assert asked.usage.input_tokens == expected.usage.prompt_tokens
    assert asked.usage.output_tokens == expected.usage.completion_tokens
    is_cut = expected.outputs[0].finish_reason == "length"
    assert asked.status == ("incomplete" if is_cut else "completed")


def test_a_conversation_of_items_is_taken(client):
    items = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "input_text", "text": "the end"}]},
    ]
    asked = client.responses.create(
        model="tiny", input=items, max_output_tokens=4, temperature=0, extra_body=NO_END
    )
    assert asked.output[0].role == "assistant"


@pytest.mark.parametrize("length", [1, 200])
def test_events_come_in_order_and_add_up(client, length):
    text, kinds, numbers = "", [], []
    stream = client.responses.create(
        model="tiny", input="the", max_output_tokens=length, extra_body={"seed": 1}, stream=True
    )
    for event in stream:
        kinds.append(event.type)
        numbers.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            text += event.delta
    assert numbers == list(range(len(numbers)))
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert event.response.output_text == text


def test_the_logprobs_of_a_response_are_those_of_the_chat(client):
    asked = {"model": "tiny", "input": "the", "max_output_tokens": 9, "top_logprobs": 2}
    asked |= {"include": ["message.output_text.logprobs"], "extra_body": {"seed": 4}}
    messages = [{"role": "user", "content": "the"}]
    chat = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=9, seed=4, logprobs=True, top_logprobs=2
    )
    expected = [entry.model_dump() for entry in chat.choices[0].logprobs.content]
    whole = client.responses.create(**asked)
    (part,) = whole.output[0].content
    assert [entry.model_dump() for entry in part.logprobs] == expected
    streamed = []
    for event in client.responses.create(**asked, stream=True):
        if event.type == "response.output_text.delta":
            streamed += [(entry.token, entry.logprob) for entry in event.logprobs]
    assert streamed == [(entry["token"], entry["logprob"]) for entry in expected]


def test_without_a_request_for_them_there_are_no_logprobs(client):
    habit = ["reasoning.encrypted_content", "file_search_call.results"]
    fixed = {"model": "tiny", "temperature": 0, "extra_body": NO_END}
    answer = client.responses.create(**fixed, input="the", max_output_tokens=3, include=habit)
    assert answer.output[0].content[0].logprobs == []
