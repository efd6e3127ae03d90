"""Chats over HTTP are the chats of the offline model, whole and streamed."""

import openai
import pytest

from outrider import LLM, SamplingParams

MESSAGES = [{"role": "user", "content": "tell me the tale"}]
ASKED = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "seed": 5}


def offline(llm, **params):
    values = {"max_tokens": 24, "seed": 5, **params}
    return llm.chat(MESSAGES, SamplingParams(**values), use_tqdm=False)[0]


def streamed(client, **asked):
    """The texts of all choices, and the last chunk of each."""
    texts, last = {}, {}
    for chunk in client.chat.completions.create(**{**ASKED, **asked}, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            last[choice.index] = choice
    return texts, last


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_chat_answers_as_the_offline_model_does(client, llm, temperature):
    answer = client.chat.completions.create(**ASKED, temperature=temperature)
    expected = offline(llm, temperature=temperature)
    assert answer.choices[0].message.content == expected.outputs[0].text
    assert answer.choices[0].finish_reason == expected.outputs[0].finish_reason
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert answer.usage.completion_tokens == expected.usage.completion_tokens
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"


def test_a_stream_adds_up_to_the_whole_answer(client, llm):
    texts, last = streamed(client, n=3)
    expected = [output.text for output in offline(llm, n=3).outputs]
    assert [texts[index] for index in range(3)] == expected
    assert {choice.finish_reason for choice in last.values()} <= {"stop", "length"}


def test_a_stream_ends_with_its_usage_when_asked(client):
    asked = {**ASKED, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0


def test_the_seed_of_every_choice_repeats_it(client):
    first = client.chat.completions.create(**{**ASKED, "seed": None}, n=2)
    for choice in first.choices:
        again = client.chat.completions.create(**{**ASKED, "seed": choice.seed})
        assert again.choices[0].message.content == choice.message.content
    assert first.choices[0].seed != first.choices[1].seed


def test_logprobs_have_the_shape_of_openai(client, llm):
    answer = client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    expected = offline(llm, logprobs=3).outputs[0]
    assert len(content) == len(expected.token_ids) == answer.usage.completion_tokens
    for token, entry, reference in zip(expected.token_ids, content, expected.logprobs, strict=True):
        assert entry.logprob == pytest.approx(reference[token].logprob, abs=1e-4)
        assert bytes(entry.bytes).decode(errors="replace") == entry.token
        assert len(entry.top_logprobs) == 3
    streamed_tokens = []
    for chunk in client.chat.completions.create(**ASKED, logprobs=True, stream=True):
        for choice in chunk.choices:
            streamed_tokens += [
                at.token for at in (choice.logprobs and choice.logprobs.content) or ()
            ]
    assert streamed_tokens == [entry.token for entry in content]


def test_a_stop_string_ends_the_answer_and_is_named(client, llm):
    whole = offline(llm, max_tokens=60).outputs[0].text
    stop = whole[10:12]
    answer = client.chat.completions.create(**{**ASKED, "max_tokens": 60}, stop=[stop])
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == stop
    texts, last = streamed(client, max_tokens=60, stop=stop)
    assert texts[0] == answer.choices[0].message.content
    assert last[0].finish_reason == "stop"


def test_extensions_mean_what_they_mean_offline(client, llm):
    extensions = {
        "top_k": 5,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "ignore_eos": True,
        "min_tokens": 20,
        "stop_token_ids": [7],
    }
    openais = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "top_p": 0.9}
    answer = client.chat.completions.create(
        **ASKED, **openais, logit_bias={"12": -100}, extra_body=extensions
    )
    expected = offline(llm, **extensions, **openais, logit_bias={12: -100}).outputs[0]
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].stop_reason == expected.stop_reason


@pytest.mark.parametrize("speculative", ["off", {"off": True}, {"steps": 2}, {"nodes": 3}, False])
def test_speculation_per_request_changes_no_token(client, llm, speculative):
    answer = client.chat.completions.create(
        **ASKED, extra_body={"speculative": speculative, "return_metrics": True}
    )
    assert answer.choices[0].message.content == offline(llm).outputs[0].text
    speculation = answer.metrics["speculative_decoding"]
    is_off = speculative in ("off", {"off": True}, False)
    assert (speculation["num_draft_tokens"] == 0) == is_off
    assert sum(speculation["acceptance_histogram"]) == speculation["num_spec_steps"]


def test_the_newer_name_of_the_length_wins(client):
    asked = {**ASKED, "max_completion_tokens": 3}
    answer = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 3


def test_the_template_gets_its_variables(client):
    with_prompt = client.chat.completions.create(**ASKED)
    without = client.chat.completions.create(
        **ASKED, extra_body={"chat_template_kwargs": {"add_generation_prompt": False}}
    )
    assert without.usage.prompt_tokens < with_prompt.usage.prompt_tokens


def test_a_model_of_another_name_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="use 'tiny'"):
        client.chat.completions.create(**{**ASKED, "model": "gpt-9"})


def test_the_llm_of_these_tests_drafts_nothing(llm):
    assert isinstance(llm, LLM)
    assert offline(llm).outputs[0].acceptance.drafted == 0
