"""The tokens of a prompt are scored as another implementation scores them, however they are cut."""

import pytest
import torch
from support.spoken import tiny_llama, write_tokenizer

from outrider import LLM, SamplingParams

PROMPT = [3, 41, 7, 7, 19, 28, 5, 5, 30, 2, 44, 9, 13, 21, 6, 34, 8, 17, 25, 4, 4, 11]
ASKED = {"temperature": 0, "max_tokens": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    tiny_llama().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder, draft="none", device="cpu", block_size=4)


@pytest.fixture(scope="module")
def reference(folder):
    """[tokens - 1, vocab] log-probabilities of the token after each token but the last."""
    with torch.inference_mode():
        logits = tiny_llama()(torch.tensor([PROMPT])).logits[0, :-1]
    return logits.log_softmax(-1)


def score(llm, prompt=PROMPT, **asked):
    params = SamplingParams(**{**ASKED, **asked})
    return llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0]


def chosen_of(output, first=1):
    tokens = output.prompt_token_ids[first:]
    entries = output.prompt_logprobs[first:]
    return [entry[token].logprob for token, entry in zip(tokens, entries, strict=True)]


def expect(output, reference, first=1):
    assert output.prompt_logprobs[:first] == [None] * first
    expected = [reference[i, token].item() for i, token in enumerate(PROMPT[1:])][first - 1 :]
    assert chosen_of(output, first) == pytest.approx(expected, abs=1e-4)


def test_every_token_but_the_first_has_the_models_own_logprob_and_rank(llm, reference):
    output = score(llm, prompt_logprobs=2)
    expect(output, reference)
    for place, (token, entry) in enumerate(
        zip(PROMPT[1:], output.prompt_logprobs[1:], strict=True)
    ):
        best = reference[place].topk(2).indices.tolist()
        assert set(entry) == {token, *best}
        assert entry[token].rank == int((reference[place] > reference[place, token]).sum()) + 1
    assert output.outputs[0].logprobs is None


def test_what_the_prefix_cache_holds_is_scored_too(llm, reference):
    score(llm)
    again = score(llm)
    assert again.usage.cached_tokens > 0
    output = score(llm, prompt_logprobs=0)
    assert output.usage.cached_tokens == 0
    expect(output, reference)


def test_a_later_start_leaves_what_comes_before_to_the_cache(llm, reference):
    score(llm)
    output = score(llm, prompt_logprobs=0, prompt_logprobs_start=14)
    assert output.usage.cached_tokens == 12  # whole pages before position 13, which scores the 14th
    expect(output, reference, first=14)


@pytest.mark.parametrize("start", [12, 16, 17, 20])
def test_a_start_at_the_edge_of_a_cached_page_scores_its_own_token(llm, reference, start):
    score(llm, prompt_logprobs=0, prompt_logprobs_start=start)
    again = score(llm, prompt_logprobs=0, prompt_logprobs_start=start)
    assert again.usage.cached_tokens == (start - 1) // 4 * 4  # position start - 1 must run
    expect(again, reference, first=start)


def test_a_start_past_the_prompt_scores_nothing(llm):
    output = score(llm, prompt_logprobs=0, prompt_logprobs_start=400)
    assert output.prompt_logprobs == [None] * len(PROMPT)


def test_named_tokens_are_reported_in_prompt_and_answer(llm, reference):
    output = score(llm, prompt_logprobs=0, logprobs=0, logprob_token_ids=[17, 40])
    for place, entry in enumerate(output.prompt_logprobs[1:]):
        assert {17, 40} <= set(entry)
        for token in (17, 40):
            assert entry[token].logprob == pytest.approx(reference[place, token].item(), abs=1e-4)
    assert all({17, 40} <= set(entry) for entry in output.outputs[0].logprobs)


def test_no_tokens_may_be_asked_for(llm, reference):
    output = score(llm, prompt_logprobs=0, max_tokens=0)
    expect(output, reference)
    assert output.outputs[0].token_ids == []
    assert output.outputs[0].finish_reason == "length"
    assert output.usage.completion_tokens == 0


@pytest.mark.parametrize("draft", ["none", "ngram"])
@pytest.mark.parametrize(("depth", "executor"), [(0, "eager"), (1, "eager"), (1, "tape")])
def test_prompts_in_pieces_beside_decoding_rows_are_scored_the_same(
    folder, reference, draft, depth, executor
):
    steps = {"depth": depth, "executor": executor, "max_num_batched_tokens": 30}
    small = LLM(folder, draft=draft, adaptive=False, device="cpu", max_num_seqs=3, **steps)
    others = [{"prompt_token_ids": [token] * 9} for token in range(5, 11)]
    params = [SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)] * len(others)
    asked = [SamplingParams(**ASKED, prompt_logprobs=1)] * 4
    outputs = small.generate(
        [*others, *[{"prompt_token_ids": PROMPT}] * 4], [*params, *asked], use_tqdm=False
    )
    for output in outputs[len(others) :]:
        expect(output, reference)


def test_a_request_that_gave_way_is_scored_once_and_rightly(folder, reference):
    tight = LLM(folder, draft="none", device="cpu", max_num_seqs=4, kv_tokens=128, block_size=4)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, prompt_logprobs=1)
    before = {"prompt_token_ids": PROMPT}
    outputs = tight.generate([before] * 6, [params] * 6, use_tqdm=False)
    assert sum(output.outputs[0].finished for output in outputs) == 6
    for output in outputs:
        expect(output, reference)


def test_an_answer_scored_as_a_prompt_has_the_logprobs_it_was_given_with(llm):
    first = score(llm, max_tokens=20, temperature=1.0, seed=5, logprobs=0)
    answer = first.outputs[0]
    again = score(llm, [*PROMPT, *answer.token_ids], max_tokens=0, prompt_logprobs=0)
    pairs = zip(answer.token_ids, answer.logprobs, strict=True)
    given = [entry[token].logprob for token, entry in pairs]
    assert chosen_of(again, len(PROMPT)) == pytest.approx(given, abs=1e-4)


def test_one_of_several_answers_scores_the_prompt(llm, reference):
    output = score(llm, n=3, prompt_logprobs=0, temperature=1.0)
    expect(output, reference)
