"""The default model, real weights and real text, against transformers."""

from dataclasses import dataclass

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider import LLM, SamplingParams
from outrider.frontend.tokenizer.tokenizer import load_tokenizer

TEXT = "The sky is blue because sunlight is scattered by the air, and blue light most of all."
# Logits reach 30, and float32 in transformers differs from float64 by 6e-5. Our fused projections
# sum in another order and differed by 1.2e-4. A wrong weight or position differs by whole units.
TOLERANCE = 3e-4


NUM_GENERATED = 18


@dataclass(frozen=True)
class Reference:
    """What transformers computes for TEXT."""

    tokens: list[int]  # of TEXT
    logprobs: torch.Tensor  # [tokens, vocab] of what follows each token
    greedy: list[int]  # the greedy answer


@pytest.fixture(scope="module")
def reference(smollm2_folder) -> Reference:
    """Made first: the two models together would take twice the memory."""
    tokens = load_tokenizer(smollm2_folder).encode(TEXT, add_special=False)
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()
    prompt = torch.tensor([tokens])
    with torch.no_grad():
        logprobs = model(prompt).logits[0].log_softmax(-1)
        answer = model.generate(prompt, max_new_tokens=NUM_GENERATED, do_sample=False)
    return Reference(tokens, logprobs, answer[0, len(tokens) :].tolist())


@pytest.fixture(scope="module")
def llm(smollm2_folder, reference) -> LLM:
    return LLM(
        smollm2_folder,
        dtype="float32",
        draft="ngram",
        adaptive=False,
        max_model_len=128,
        kv_tokens=512,
    )


@pytest.mark.slow
def test_log_probabilities_of_real_text_equal_transformers(llm, reference):
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20)
    tokens = reference.tokens
    prompts = [{"prompt_token_ids": tokens[:n]} for n in range(4, len(tokens))]
    answers = llm.generate(prompts, params, use_tqdm=False)  # batched, chunked, from the cache
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = reference.logprobs[len(prompt["prompt_token_ids"]) - 1]
        for token, logprob in answer.outputs[0].logprobs[0].items():
            assert abs(logprob.logprob - expected[token].item()) <= TOLERANCE


@pytest.mark.slow
def test_a_greedy_answer_equals_transformers(llm, reference):
    params = SamplingParams(temperature=0, max_tokens=NUM_GENERATED)
    [answer] = llm.generate({"prompt_token_ids": reference.tokens}, params, use_tqdm=False)
    assert answer.outputs[0].token_ids == reference.greedy
