"""SGLang's own routes."""

import json
from itertools import pairwise

import httpx
import pytest

from outrider import SamplingParams


def test_generate_answers_in_the_format_of_sglang(server, llm):
    asked = {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True}
    answer = server.post("/generate", {"text": "the tale", "sampling_params": asked}).json()
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    expected = llm.generate("the tale", params, use_tqdm=False)[0]
    assert answer["text"] == expected.outputs[0].text
    assert answer["output_ids"] == expected.outputs[0].token_ids
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 16}
    assert meta["completion_tokens"] == 16
    assert meta["prompt_tokens"] == len(expected.prompt_token_ids)
    assert 1 <= meta["spec_verify_ct"] <= 15
    assert meta["spec_accept_length"] == 16 / meta["spec_verify_ct"]
    assert {"cached_tokens", "id", "e2e_latency"} <= set(meta)


def test_several_prompts_make_a_list(server):
    body = {"input_ids": [[5, 6], [7, 8, 9]], "sampling_params": {"max_new_tokens": 4}}
    answers = server.post("/generate", body).json()
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [2, 3]


def test_a_stream_repeats_the_text_so_far(server):
    asked = {"max_new_tokens": 12, "sampling_seed": 4, "ignore_eos": True}
    body = {"text": "the", "sampling_params": asked}
    whole = server.post("/generate", body).json()
    events = []
    with httpx.stream("POST", f"{server.url}/generate", json={**body, "stream": True}) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    texts = [json.loads(event)["text"] for event in events[:-1]]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert texts[-1] == whole["text"]


def test_logprobs_are_triples(server):
    body = {
        "text": "the",
        "sampling_params": {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    meta = server.post("/generate", body).json()["meta_info"]
    assert len(meta["output_token_logprobs"]) == 5
    for (logprob, token, text), top in zip(
        meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True
    ):
        assert [logprob, token, text] == top[0]  # greedy takes the likeliest


def test_the_server_describes_itself_without_paths(server, served_folder):
    about = server.get("/server_info").json()
    assert about["max_total_tokens"] == about["max_total_num_tokens"] > 0
    assert (about["model_path"], about["load_balance_method"]) == ("tiny", "auto")
    assert about["internal_states"][0]["avg_spec_accept_length"] >= 1
    assert 0 <= about["internal_states"][0]["forward_occupancy"] <= 1
    assert about == server.get("/get_server_info").json()
    assert server.get("/get_model_info").json()["is_generation"] is True
    assert str(served_folder) not in server.get("/get_model_info").text


def test_a_flushed_cache_serves_nothing(server):
    body = {"input_ids": [7] * 64, "sampling_params": {"max_new_tokens": 1}}
    server.post("/generate", body)
    assert server.post("/generate", body).json()["meta_info"]["cached_tokens"] > 0
    assert server.post("/flush_cache", {}).status_code == 200
    assert server.post("/generate", body).json()["meta_info"]["cached_tokens"] == 0


@pytest.mark.slow
def test_events_that_repeat_the_answer_grow_with_it_and_not_with_its_square(server):
    asked = {"max_new_tokens": 1500, "ignore_eos": True, "sampling_seed": 1}
    body = {"text": "the", "sampling_params": asked, "stream": True}
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=60) as response:
        events = [line for line in response.iter_lines() if line.startswith("data: {")]
    lengths = [len(json.loads(line.removeprefix("data: "))["output_ids"]) for line in events]
    assert lengths == sorted(lengths)
    assert lengths[-1] == 1500
    assert len(lengths) > 100  # it is still a stream
    assert sum(lengths) < 256 * 1500
