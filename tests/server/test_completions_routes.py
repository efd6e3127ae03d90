"""Completions over HTTP are those of the offline model."""

import pytest

from outrider import SamplingParams

PROMPTS = ["once upon a time", "the end"]


def test_several_prompts_with_several_answers_keep_their_order(client, llm):
    answer = client.completions.create(model="tiny", prompt=PROMPTS, n=2, seed=3, max_tokens=12)
    params = SamplingParams(n=2, seed=3, max_tokens=12)
    expected = [
        output.text
        for request in llm.generate(PROMPTS, params, use_tqdm=False)
        for output in request.outputs
    ]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


def test_a_stream_of_several_choices_adds_up(client, llm):
    texts = ["", "", "", ""]
    asked = {"model": "tiny", "prompt": PROMPTS, "n": 2, "seed": 3, "max_tokens": 12}
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in client.completions.create(**asked).choices]


def test_token_ids_are_a_prompt(client, llm):
    ids = [5, 9, 11, 3]
    answer = client.completions.create(model="tiny", prompt=ids, seed=1, max_tokens=8)
    params = SamplingParams(seed=1, max_tokens=8)
    expected = llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)
    assert answer.choices[0].text == expected[0].outputs[0].text
    several = client.completions.create(model="tiny", prompt=[ids, ids], seed=1, max_tokens=8)
    assert [choice.text for choice in several.choices] == [answer.choices[0].text] * 2


def test_logprobs_are_four_lists_of_one_length(client):
    asked = {"model": "tiny", "prompt": "the", "seed": 2, "max_tokens": 9, "logprobs": 2}
    answer = client.completions.create(**asked)
    logprobs, num_tokens = answer.choices[0].logprobs, answer.usage.completion_tokens
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == num_tokens
    assert len(logprobs.top_logprobs) == len(logprobs.text_offset) == num_tokens
    tokens, offsets = [], []
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            tokens += choice.logprobs.tokens
            offsets += choice.logprobs.text_offset
    assert (tokens, offsets) == (logprobs.tokens, logprobs.text_offset)


def test_an_echoed_prompt_comes_first(client):
    asked = {"model": "tiny", "prompt": "the tale", "seed": 2, "max_tokens": 9}
    plain, echoed = (
        client.completions.create(**asked),
        client.completions.create(**asked, echo=True),
    )
    assert echoed.choices[0].text == "the tale" + plain.choices[0].text
    pieces = client.completions.create(**asked, echo=True, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == echoed.choices[0].text
    ids = client.completions.create(**{**asked, "prompt": [46, 2]}, echo=True)
    assert ids.choices[0].text.startswith("tha")


def test_an_echoed_prompt_is_scored_without_an_answer(client, llm):
    asked = {"model": "tiny", "prompt": ["the tale", "of a"], "logprobs": 2, "echo": True}
    answer = client.completions.create(**asked, max_tokens=0)
    params = SamplingParams(max_tokens=0, prompt_logprobs=2)
    expected = llm.generate(asked["prompt"], params, use_tqdm=False)
    for choice, output in zip(answer.choices, expected, strict=True):
        logprobs, ids = choice.logprobs, output.prompt_token_ids
        assert choice.text == output.prompt == "".join(logprobs.tokens)
        assert logprobs.token_logprobs[0] is None
        assert logprobs.top_logprobs[0] is None
        own = [
            entry[token].logprob
            for token, entry in zip(ids, output.prompt_logprobs, strict=True)
            if entry
        ]
        assert logprobs.token_logprobs[1:] == pytest.approx(own, abs=1e-4)
        assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 0


@pytest.mark.parametrize("n", [1, 3])
def test_a_streamed_echo_has_the_scores_of_the_whole_one(client, n):
    asked = {"model": "tiny", "prompt": "the tale", "seed": 2, "max_tokens": 9, "logprobs": 1}
    whole = client.completions.create(**asked, n=n, echo=True)
    streamed = {index: ([], [], []) for index in range(n)}
    for chunk in client.completions.create(**asked, n=n, echo=True, stream=True):
        for choice in chunk.choices:
            streamed[choice.index][0].extend(choice.logprobs.tokens)
            streamed[choice.index][1].extend(choice.logprobs.token_logprobs)
            streamed[choice.index][2].extend(choice.logprobs.text_offset)
    for choice in whole.choices:
        logprobs = choice.logprobs
        assert streamed[choice.index][0] == logprobs.tokens
        assert streamed[choice.index][1][1:] == pytest.approx(logprobs.token_logprobs[1:], abs=1e-3)
        assert streamed[choice.index][2] == logprobs.text_offset
