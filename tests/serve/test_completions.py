"""Completions over HTTP are those of the offline model."""

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
