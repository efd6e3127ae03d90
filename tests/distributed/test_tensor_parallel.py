"""Tensor parallelism in real processes: the tokens are those of one process."""

import pytest
import torch

from outrider import LLM, SamplingParams
from tests.support.spoken import tiny_llama

PROMPTS = [[5, 6, 7, 5, 6, 7, 5], [9, 8, 7, 6, 5, 4, 3, 2, 1]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(folder)
    return folder


def answers(folder, size, draft):
    llm = LLM(
        folder,
        draft=draft,
        adaptive=False,
        tensor_parallel_size=size,
        max_num_seqs=4,
        kv_tokens=1024,
        seed=3,
    )
    params = SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True)
    prompts = [{"prompt_token_ids": each} for each in PROMPTS]
    return [list(each.outputs[0].token_ids) for each in llm.generate(prompts, params)]


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["none", "ngram"])
def test_two_ranks_give_the_tokens_of_one(folder, draft):
    assert answers(folder, 2, draft) == answers(folder, 1, draft)


@pytest.mark.slow
def test_two_ranks_read_embeddings_and_report_the_hidden_states_of_one(folder):
    table = tiny_llama().get_input_embeddings().weight.detach()
    random = torch.randn(9, table.shape[1], generator=torch.Generator().manual_seed(1)) * 0.05
    prompts = [{"prompt_embeds": random}, {"prompt_embeds": table[[5, 6, 7]]}]
    params = SamplingParams(
        temperature=0.0, max_tokens=8, ignore_eos=True, return_hidden_states="all"
    )
    found = []
    for size in (1, 2):
        llm = LLM(folder, draft="ngram", tensor_parallel_size=size, max_num_seqs=4, kv_tokens=1024)
        outputs = [each.outputs[0] for each in llm.generate(prompts, params, use_tqdm=False)]
        found.append(([each.token_ids for each in outputs], [o.hidden_states for o in outputs]))
    (tokens, states), (ranked_tokens, ranked_states) = found
    assert ranked_tokens == tokens
    for own, ranked in zip(states, ranked_states, strict=True):
        assert own.shape == ranked.shape
        assert abs(own - ranked).max() < 1e-4


@pytest.mark.slow
def test_ranks_end_when_the_engine_sleeps_and_start_again(folder):
    llm = LLM(
        folder,
        draft="ngram",
        adaptive=False,
        tensor_parallel_size=2,
        max_num_seqs=4,
        kv_tokens=1024,
    )
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
    prompts = [{"prompt_token_ids": each} for each in PROMPTS]

    def tokens():
        return [list(each.outputs[0].token_ids) for each in llm.generate(prompts, params)]

    before = tokens()
    (rank,) = llm._engine._runner._others._peers
    llm.sleep()
    assert rank.link._started.process.poll() is not None
    llm.wake_up()
    assert tokens() == before
