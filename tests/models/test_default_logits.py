"""The default model, real weights and real text, against transformers."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider import LLM, SamplingParams
from outrider.frontend.tokenizer.tokenizer import load_tokenizer

TEXT = "The sky is blue because sunlight is scattered by the air, and blue light most of all."
# Logits reach 30, and float32 in transformers differs from float64 by 6e-5. Our fused projections
# sum in another order and differed by 1.2e-4. A wrong weight or position differs by whole units.
TOLERANCE = 3e-4


@pytest.fixture(scope="module")
def theirs(smollm2_folder):
    return AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()


def test_log_probabilities_of_real_text_equal_transformers(smollm2_folder, theirs):
    tokens = load_tokenizer(smollm2_folder).encode(TEXT, add_special=False)
    llm = LLM(smollm2_folder, max_model_len=128, kv_tokens=512)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20)
    prompts = [{"prompt_token_ids": tokens[:n]} for n in range(4, len(tokens))]
    answers = llm.generate(prompts, params, use_tqdm=False)  # batched, chunked, from the cache
    with torch.no_grad():
        expected = theirs(torch.tensor([tokens])).logits[0].log_softmax(-1)
    for prompt, answer in zip(prompts, answers, strict=True):
        at = expected[len(prompt["prompt_token_ids"]) - 1]
        for token, logprob in answer.outputs[0].logprobs[0].items():
            assert abs(logprob.logprob - at[token].item()) <= TOLERANCE


def test_a_greedy_answer_equals_transformers(smollm2_folder, theirs):
    tokens = load_tokenizer(smollm2_folder).encode(TEXT, add_special=False)
    llm = LLM(smollm2_folder, draft="ngram", max_model_len=128, kv_tokens=512)
    params = SamplingParams(temperature=0, max_tokens=18)
    [answer] = llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)
    with torch.no_grad():
        right = theirs.generate(torch.tensor([tokens]), max_new_tokens=18, do_sample=False)
    assert answer.outputs[0].token_ids == right[0, len(tokens) :].tolist()
