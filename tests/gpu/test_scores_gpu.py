"""On a GPU prompts are scored as on a CPU, beside recorded steps that score nothing."""

import pytest

from outrider import LLM, SamplingParams

PROMPTS = [
    "The capital of France is Paris, and the capital of Italy is",
    "def add(a, b):\n    return a + b\n\n\ndef",
    "one two three four five " * 60,
]
NAMED = [1, 10, 100, 1000, 40000]
CLOSE = 0.35  # of bfloat16 over thirty layers; the kits of SGLang allow 0.5
FAR = 1.5  # of very unlikely tokens: torch's own bfloat16 on a CPU is 1.3 off
LIKELY = -10.0


@pytest.fixture(scope="module")
def expected(smollm2_folder):
    """What float32 says on a CPU."""
    llm = LLM(smollm2_folder, draft="none", device="cpu")
    return [score.prompt_logprobs for score in scores_of(llm)]


@pytest.fixture(scope="module", params=["eager", "graph", "breakable"])
def llm(request, smollm2_folder):
    return LLM(
        smollm2_folder,
        draft="ngram",
        adaptive=False,
        device="cuda",
        executor=request.param,
        kv_tokens=16384,
    )


def scores_of(llm, **more):
    params = SamplingParams(max_tokens=0, prompt_logprobs=2, logprob_token_ids=NAMED, **more)
    return llm.generate(PROMPTS, params, use_tqdm=False)


def test_every_token_and_every_named_one_has_the_logprob_of_the_reference(llm, expected):
    for _ in range(2):  # what is cached or recorded by now changes nothing
        for output, wanted in zip(scores_of(llm), expected, strict=True):
            pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
            for (token, entry), other in zip(pairs, wanted[1:], strict=True):
                for each in (token, *NAMED):
                    right = other[each].logprob
                    allowed = CLOSE if right > LIKELY else FAR
                    assert entry[each].logprob == pytest.approx(right, abs=allowed)


def test_an_answer_scored_as_a_prompt_has_the_logprobs_it_was_given_with(llm):
    params = SamplingParams(max_tokens=64, seed=3, ignore_eos=True, logprobs=0)
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        answer, prompt = output.outputs[0], output.prompt_token_ids
        again = llm.generate(
            {"prompt_token_ids": [*prompt, *answer.token_ids]},
            SamplingParams(max_tokens=0, prompt_logprobs=0),
            use_tqdm=False,
        )[0]
        scored = again.prompt_logprobs[len(prompt) :]
        for token, given, after in zip(answer.token_ids, answer.logprobs, scored, strict=True):
            assert after[token].logprob == pytest.approx(given[token].logprob, abs=CLOSE)
