"""On a GPU every executor reports the hidden states of a CPU, of accepted positions alone."""

import numpy as np
import pytest

from outrider import LLM, SamplingParams

PROMPTS = ["The capital of France is Paris, and the capital of Italy is", "one two three " * 40]
FAR = 0.1  # of bfloat16, relative to the length of a hidden state


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


def test_states_of_an_answer_are_those_of_its_text_on_a_cpu(llm, smollm2_folder):
    cpu = LLM(smollm2_folder, draft="none", device="cpu", dtype="float32")
    wanted = {"temperature": 0, "ignore_eos": True, "return_hidden_states": "all"}
    for _ in range(3):  # eager, captured, replayed
        outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=32, **wanted), use_tqdm=False)
        for output in outputs:
            text = [*output.prompt_token_ids, *output.outputs[0].token_ids][:-1]
            again = cpu.generate(
                {"prompt_token_ids": text}, SamplingParams(max_tokens=0, **wanted), use_tqdm=False
            )[0].outputs[0]
            got, right = output.outputs[0].hidden_states, again.hidden_states
            assert got.shape == right.shape
            distance = np.linalg.norm(got - right, axis=1) / np.linalg.norm(right, axis=1)
            assert distance.max() < FAR
