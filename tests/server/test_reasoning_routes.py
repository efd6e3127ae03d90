"""A model that reasons first: its reasoning, budgets on it, and structured output after it."""

import openai
import pytest
from support.served import ServerProcess
from support.speaker import write_speaker

pytestmark = pytest.mark.slow  # a server of its own

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SCRIPT = ["<think>", "let ", "me ", "see ", "now", "</think>", "The ", "answer", "."]
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "why?"}], "max_tokens": 40}
GREEDY = {**ASKED, "temperature": 0}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thinker")
    write_speaker(folder, SCRIPT, TEMPLATE, added=("<think>", "</think>"))
    log = tmp_path_factory.mktemp("log") / "stderr"
    flags = ("--served-model-name", "tiny", "--draft", "ngram", "--no-adaptive")
    server = ServerProcess(folder, log, *flags, "--reasoning-parser", "qwen3")
    yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30)
    assert server.stop() == 0


def test_reasoning_is_apart_from_the_content(client):
    message = client.chat.completions.create(**GREEDY).choices[0].message
    assert (message.reasoning_content, message.content) == ("let me see now", "The answer.")
    deltas = [
        chunk.choices[0].delta for chunk in client.chat.completions.create(**GREEDY, stream=True)
    ]
    reasoning = "".join(delta.model_extra.get("reasoning_content") or "" for delta in deltas)
    assert reasoning == "let me see now"
    assert "".join(delta.content or "" for delta in deltas) == "The answer."


def test_reasoning_can_be_left_out_or_in_the_content(client):
    hidden = client.chat.completions.create(**GREEDY, extra_body={"include_reasoning": False})
    assert "reasoning_content" not in hidden.choices[0].message.model_extra
    assert hidden.choices[0].message.content == "The answer."
    joined = client.chat.completions.create(**GREEDY, extra_body={"separate_reasoning": False})
    assert joined.choices[0].message.content == "<think>let me see now</think>The answer."


@pytest.mark.parametrize("speculative", ["off", None])
def test_a_budget_ends_the_reasoning(client, speculative):
    for budget, thought in (
        (3, "let me"),
        (1, None),
        (40, "let me see now"),
        (-1, "let me see now"),
        (10**30, "let me see now"),
    ):
        fields = {"thinking_token_budget": budget, "speculative": speculative}
        message = client.chat.completions.create(**GREEDY, extra_body=fields).choices[0].message
        assert message.model_extra.get("reasoning_content") == thought
        assert message.content == "The answer."


def test_structured_output_begins_after_the_reasoning(client):
    pytest.importorskip("xgrammar")
    for seed in range(4):
        fields = {"structured_outputs": {"regex": "[xyz]{2}"}, "thinking_token_budget": 3}
        message = (
            client.chat.completions.create(**GREEDY, seed=seed, extra_body=fields)
            .choices[0]
            .message
        )
        assert message.reasoning_content == "let me"
        assert len(message.content) == 2
        assert set(message.content) <= set("xyz")


def test_a_response_has_its_reasoning_as_an_item(client):
    answer = client.responses.create(model="tiny", input="why?", temperature=0)
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output[0].content[0].text == "let me see now"
    assert answer.output_text == "The answer."
    kinds = [
        event.type
        for event in client.responses.create(model="tiny", input="why?", temperature=0, stream=True)
    ]
    assert "response.reasoning_text.delta" in kinds
