"""OpenAI's newer API, with its own client."""

import pytest

from outrider import SamplingParams


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
    asked = client.responses.create(model="tiny", input=items, max_output_tokens=4)
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
