"""Data parallelism in real processes: the tokens are those of one process."""

from dataclasses import replace

import httpx
import pytest
from support.data_traces import ThreadRunner, Trace, engine_of
from support.engines import make_submission
from support.served import ServerProcess

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError, RequestError
from outrider.wire.row_sampling import RowSampling
from tests.support.spoken import tiny_llama, write_tokenizer
from tests.support.tiny import tiny_model

PARAMS = SamplingParams(temperature=0.8, max_tokens=10, ignore_eos=True)


def answers(folder, **parallel):
    llm = LLM(
        folder, draft="ngram", adaptive=False, max_num_seqs=2, kv_tokens=1024, seed=3, **parallel
    )
    prompts = [
        {"prompt_token_ids": [(7 * row + 3 * place) % 40 + 1 for place in range(4 + 5 * row)]}
        for row in range(5)
    ]
    return [list(each.outputs[0].token_ids) for each in llm.generate(prompts, PARAMS)]


@pytest.mark.slow
@pytest.mark.parametrize("is_expert_parallel", [False, True])
def test_ranks_with_requests_of_their_own_give_the_tokens_of_one(tmp_path, is_expert_parallel):
    tiny_model("qwen3-moe").save_pretrained(tmp_path)
    found = answers(tmp_path, data_parallel_size=2, enable_expert_parallel=is_expert_parallel)
    assert found == answers(tmp_path)


@pytest.mark.slow
def test_structured_output_is_refused_by_name_and_other_requests_go_on(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    llm = LLM(tmp_path, draft="none", max_num_seqs=2, kv_tokens=512, data_parallel_size=2)
    wanted = replace(PARAMS, structured={"regex": "[a-z]+"}, ignore_eos=False)
    with pytest.raises(RequestError, match="not available with --data-parallel-size"):
        llm.generate(["ab"], wanted)
    assert len(llm.generate(["ab"], PARAMS)[0].outputs[0].token_ids) == 10


@pytest.mark.slow
def test_a_server_of_several_engines_refuses_to_free_memory_and_ends_no_request(tmp_path):
    tiny_model("qwen3-moe").save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    flags = ("--draft", "none", "--dp", "2", "--enable-expert-parallel", "--kv-tokens", "1024")
    server = ServerProcess(tmp_path, tmp_path / "log", *flags)
    body = {"model": "x", "prompt": "th", "max_tokens": 200, "ignore_eos": True, "stream": True}
    try:
        body["model"] = server.get("/v1/models").json()["data"][0]["id"]
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            refused = server.post("/sleep?level=1", None)
            assert refused.status_code == 400
            assert "--data-parallel-size 2 cannot sleep" in refused.json()["error"]["message"]
            assert '"finish_reason":"length"' in "".join(lines)
        assert server.get("/is_sleeping").json() == {"is_sleeping": False}
    finally:
        server.process.kill()


def test_a_second_request_of_one_id_is_refused_on_any_rank(rank_matrix):
    models = rank_matrix.family("qwen3-moe").on(2, has_own_requests=True)
    engine = engine_of(models, Trace(family="qwen3-moe", size=2, drafter="none", seed=0))
    engine.add(make_submission("same", [3, 4, 5], RowSampling(seed=0, temperature=0.0)))
    with pytest.raises(RequestError, match="already in use"):
        engine.add(make_submission("same", [6, 7], RowSampling(seed=0, temperature=0.0)))


def test_an_interrupted_step_ends_the_engine_for_good(rank_matrix, monkeypatch):
    models = rank_matrix.family("qwen3-moe").on(2, has_own_requests=True)
    engine = engine_of(models, Trace(family="qwen3-moe", size=2, drafter="none", seed=0))
    engine.add(make_submission("one", [3, 4, 5], RowSampling(seed=0, temperature=0.0)))

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadRunner, "submit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.is_over
    assert engine.num_failed_steps == 1


def test_experts_are_divided_among_data_parallel_ranks_only(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="add --data-parallel-size"):
        LLM(tmp_path, draft="none", tensor_parallel_size=2, enable_expert_parallel=True)


def test_experts_of_a_model_without_experts_are_refused(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="leave --enable-expert-parallel out"):
        LLM(tmp_path, draft="none", data_parallel_size=2, enable_expert_parallel=True)
