"""Tensor parallelism in real processes: the tokens are those of one process."""

import pytest

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
