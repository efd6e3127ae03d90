"""On a GPU embeddings go through captured prompts, mixed with rows of tokens."""

import pytest
import torch

from outrider import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
LENGTHS = (37, 200)  # no bucket has these sizes


@pytest.fixture(scope="module", params=["eager", "graph", "breakable"])
def llm(request, smollm2_folder):
    return LLM(
        smollm2_folder,
        draft="ngram",
        adaptive=False,
        device="cuda",
        executor=request.param,
        kv_tokens=16384,
        enable_prefix_caching=False,  # every prompt runs
    )


@pytest.fixture(scope="module")
def table(smollm2_folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.bfloat16)
    return model.get_input_embeddings().weight.data


def answers(llm, prompts):
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def test_embeddings_of_ids_give_the_tokens_of_the_ids(llm, table):
    ids = [list(range(1000, 1000 + length)) for length in LENGTHS]
    tokens = [{"prompt_token_ids": each} for each in ids]
    embeds = [{"prompt_embeds": table[torch.tensor(each)]} for each in ids]
    assert answers(llm, embeds) == answers(llm, tokens)


def test_random_embeddings_are_the_same_when_replayed_beside_other_prompts(llm, table):
    generator = torch.Generator().manual_seed(7)
    random = [
        torch.randn(length, table.shape[1], generator=generator) * table.float().std()
        for length in LENGTHS
    ]
    prompts = [{"prompt_embeds": each} for each in random]
    first = answers(llm, prompts)
    for _ in range(3):  # captured, then replayed; other embeddings ran in between
        answers(llm, [{"prompt_embeds": each.flip(0)} for each in random])
        mixed = answers(llm, [prompts[0], {"prompt_token_ids": [5, 6, 7]}, prompts[1]])
        assert [mixed[0], mixed[2]] == first
