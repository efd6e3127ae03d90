"""The default model with its real weights: log-probabilities have the same bits however drafted."""

import pytest
from support.torch_threads import torch_threads

from outrider import LLM, SamplingParams
from outrider.cli.check.check_cases import PROMPTS

WAYS = {
    "batch": {"draft": "none"},
    "ngram": {"draft": "ngram", "adaptive": False},
    "chain": {"draft": "auto", "steps": 5, "topk": 1, "nodes": 6, "adaptive": False},
    "tree": {"draft": "auto", "steps": 3, "topk": 4, "nodes": 12, "adaptive": False},
}


def answers(folder, prompts_at_once, **draft):
    llm = LLM(folder, max_model_len=256, kv_tokens=2048, **draft)
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=2, ignore_eos=True)
    prompts = [llm.frontend.inputs.render([{"role": "user", "content": p}]) for p in PROMPTS]
    found = []
    for start in range(0, len(prompts), prompts_at_once):
        outputs = llm.generate(prompts[start : start + prompts_at_once], params, use_tqdm=False)
        found += [output.outputs[0] for output in outputs]
    return [
        (each.token_ids, [{t: p.logprob for t, p in at.items()} for at in each.logprobs])
        for each in found
    ]


@pytest.fixture(scope="module")
def plain(smollm2_folder):
    with torch_threads(2):
        return answers(smollm2_folder, 1, draft="none")


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS))
def test_drafts_and_batches_change_no_bit_of_an_answer(way, plain, smollm2_folder):
    with torch_threads(2):
        assert answers(smollm2_folder, len(PROMPTS), **WAYS[way]) == plain
