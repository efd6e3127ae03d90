"""What SGLang's black-box test kits request of a server, with only an HTTP client."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

SEED = 31
CODE = "def add(a, b): return a plus b. def add(a, b): return a plus b. def"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]{1,4}$"}, "age": {"enum": [1, 2]}},
    "required": ["name", "age"],
}


def generate(server, **body):
    response = httpx.post(f"{server.url}/generate", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def test_accept_length_follows_from_the_meta_info(server):
    prompts = [CODE] * 5
    asked = {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True}
    answers = generate(server, text=prompts, sampling_params=asked)
    for answer in answers:
        meta = answer["meta_info"]
        assert meta["completion_tokens"] / meta["spec_verify_ct"] > 1
    info = httpx.get(f"{server.url}/server_info").json()
    assert info["internal_states"][0]["avg_spec_accept_length"] > 1
    assert info["speculative_eagle_topk"] == 1


def test_prompts_may_have_parameters_of_their_own(server):
    rng = random.Random(SEED)
    lengths = [rng.randint(1, 3) for _ in range(8)]
    asked = [{"temperature": 0, "max_new_tokens": n, "ignore_eos": True} for n in lengths]
    answers = generate(server, text=[f"the {n}" for n in range(8)], sampling_params=asked)
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == lengths


def test_the_prompt_is_scored_from_its_start(server):
    answers = generate(
        server,
        text=["i have a very good idea on", "today is a sunny day and"],
        sampling_params={"temperature": 0, "max_new_tokens": 4, "ignore_eos": True},
        return_logprob=True,
        top_logprobs_num=5,
        return_text_in_logprobs=True,
        logprob_start_len=4,
    )
    for answer in answers:
        meta = answer["meta_info"]
        assert meta["prompt_tokens"] == 4 + len(meta["input_token_logprobs"])
        assert len(meta["output_token_logprobs"]) == meta["completion_tokens"] == 4


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_an_answer_has_the_logprobs_that_it_has_as_a_prompt(server, temperature):
    probes, more = [1, 2, 10, 20], {"return_logprob": True, "top_logprobs_num": 5}
    given = generate(
        server,
        text="i have a very good idea on how to",
        sampling_params={
            **{"temperature": temperature, "sampling_seed": 3},
            **{"max_new_tokens": 64, "ignore_eos": True},
        },
        logprob_start_len=0,
        token_ids_logprob=probes,
        **more,
    )["meta_info"]
    prompt = [entry[1] for entry in given["input_token_logprobs"]]
    output = [entry[1] for entry in given["output_token_logprobs"]]
    scored = generate(
        server,
        input_ids=prompt + output,
        sampling_params={"temperature": temperature, "max_new_tokens": 0},
        logprob_start_len=0,
        token_ids_logprob=probes,
        **more,
    )["meta_info"]
    assert scored["completion_tokens"] == 0
    assert scored["finish_reason"] == {"type": "length", "length": 0}
    assert scored["input_token_logprobs"][0][0] is None
    for kind in ("token_logprobs", "top_logprobs", "token_ids_logprobs"):
        before, after = given[f"output_{kind}"], scored[f"input_{kind}"][len(prompt) :]
        assert len(before) == len(after) == 64
        for one, other in zip(before, after, strict=True):
            flat = [one] if kind == "token_logprobs" else one
            again = [other] if kind == "token_logprobs" else other
            assert [entry[1:] for entry in flat] == [entry[1:] for entry in again]
            values = [entry[0] for entry in again]
            assert [entry[0] for entry in flat] == pytest.approx(values, abs=1e-3)


@pytest.mark.slow
def test_lengths_starts_and_reports_of_all_kinds_run_side_by_side(server):
    rng = random.Random(SEED)
    cases = [
        (length, output, start, wants, top)
        for length in (20, 50, 200)
        for output in (4, 8)
        for start in (0, 10, 30, 198)
        for wants in (True, False)
        for top in (0, 5)
        if start < length
    ]
    rng.shuffle(cases)

    def check(case):
        length, output, start, wants, top = case
        meta = generate(
            server,
            input_ids=[2 + place % 40 for place in range(length)],
            sampling_params={"temperature": 0, "max_new_tokens": output, "ignore_eos": True},
            return_logprob=wants,
            logprob_start_len=start,
            top_logprobs_num=top,
        )["meta_info"]
        assert (meta["prompt_tokens"], meta["completion_tokens"]) == (length, output)
        if not wants:
            assert "output_token_logprobs" not in meta
            return
        assert len(meta["input_token_logprobs"]) + start == length
        assert len(meta["input_top_logprobs"]) + start == length
        for chosen, likely in zip(
            meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True
        ):
            assert len(likely) == top
            assert not top or chosen == likely[0]

    with ThreadPoolExecutor(8) as callers:
        assert len(list(callers.map(check, cases))) == len(cases)


def test_named_tokens_may_be_few_or_many_in_one_batch(server):
    probes = [[1, 2], [3, 4, 5], [6], [10, 20, 30, 40]] * 2

    def ask(named):
        meta = generate(
            server,
            text="hello world",
            sampling_params={"temperature": 0, "max_new_tokens": 8, "ignore_eos": True},
            return_logprob=True,
            top_logprobs_num=3,
            token_ids_logprob=named,
        )["meta_info"]
        for entries in meta["output_token_ids_logprobs"]:
            assert [entry[1] for entry in entries] == named

    with ThreadPoolExecutor(8) as callers:
        list(callers.map(ask, probes))
    lists = generate(
        server,
        text=["a", "b"],
        sampling_params={"max_new_tokens": 2, "ignore_eos": True},
        return_logprob=[True, False],
        token_ids_logprob=[[1, 2, 3], None],
        top_logprobs_num=[0, 0],
    )
    assert len(lists[0]["meta_info"]["output_token_ids_logprobs"][0]) == 3
    assert "output_token_logprobs" not in lists[1]["meta_info"]


PENALTIES = [
    {},
    {"frequency_penalty": 2},
    {"presence_penalty": 1},
    {"min_new_tokens": 16},
    {"frequency_penalty": 0.4, "presence_penalty": 0.8},
    {"presence_penalty": -0.3, "frequency_penalty": 1.3, "min_new_tokens": 32},
]


@pytest.mark.slow
def test_penalties_mix_under_concurrency(server):
    def ask(penalties):
        asked = {"max_new_tokens": 32, "temperature": 0.5, **penalties}
        return generate(server, text="the tale of", sampling_params=asked)["meta_info"]

    with ThreadPoolExecutor(8) as callers:
        metas = list(callers.map(ask, PENALTIES * 5))
    for asked, meta in zip(PENALTIES * 5, metas, strict=True):
        assert meta["completion_tokens"] >= asked.get("min_new_tokens", 0)


def test_clients_that_give_up_do_not_disturb_others(server):
    asked = {"max_new_tokens": 2000, "ignore_eos": True}

    def leave():
        body = {"text": "the", "sampling_params": asked}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/generate", json=body, timeout=0.3)

    leaving = [threading.Thread(target=leave) for _ in range(4)]
    for each in leaving:
        each.start()
    answer = generate(server, text="the", sampling_params={**asked, "max_new_tokens": 50})
    assert answer["meta_info"]["completion_tokens"] == 50
    for each in leaving:
        each.join()
    assert not server.wait_until_idle()["has_leak"]


@pytest.mark.slow
@pytest.mark.parametrize("wants", [False, True])
def test_a_schema_ends_the_answer_and_every_token_has_its_logprob(default_server, wants):
    answer = generate(
        default_server,
        text="Here is a person in the JSON format.\n",
        sampling_params={
            "temperature": 0,
            "max_new_tokens": 200,
            "json_schema": json.dumps(SCHEMA),
        },
        return_logprob=wants,
        logprob_start_len=0,
    )
    assert set(json.loads(answer["text"])) == {"name", "age"}
    assert answer["meta_info"]["spec_verify_ct"] > 0
    if wants:
        meta = answer["meta_info"]
        assert len(meta["output_token_logprobs"]) == meta["completion_tokens"]


@pytest.mark.parametrize(
    ("form", "texts"),
    [({"regex": "(yes|no)"}, ("yes", "no")), ({"ebnf": 'root ::= "a" | "bc"'}, ("a", "bc"))],
)
@pytest.mark.slow
def test_a_pattern_or_a_grammar_shapes_the_answer(server, form, texts):
    asked = {"temperature": 1.0, "max_new_tokens": 16, **form}
    assert generate(server, text="is it", sampling_params=asked)["text"] in texts


def test_a_matched_stop_is_named(server):
    asked = {"max_new_tokens": 400, "stop": ["e"], "temperature": 1.0, "sampling_seed": 3}
    answer = generate(server, text="the tale", sampling_params=asked)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "e"}
    assert "e" not in answer["text"]
    shown = generate(server, text="the tale", sampling_params={**asked, "no_stop_trim": True})
    assert shown["text"].endswith("e")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_openais_routes_name_the_matched_stop_too(server, path):
    asked = {"prompt": "the"} if path == "/v1/completions" else {}
    asked = asked or {"messages": [{"role": "user", "content": "the"}]}
    asked |= {"model": "default", "seed": 3, "max_tokens": 3000}

    def end(**more):
        response = httpx.post(server.url + path, json={**asked, **more}, timeout=60)
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        return choice["finish_reason"], choice["matched_stop"]

    assert end(stop="e") == ("stop", "e")
    assert end(stop_token_ids=[7], ignore_eos=True) == ("stop", 7)
    assert end() == ("stop", 0)  # the end of sequence
    assert end(max_tokens=2, ignore_eos=True) == ("length", None)


def test_a_tree_of_prefixes_in_one_request_with_answers_of_any_length(server):
    rng, nodes = random.Random(SEED), [([7] * 37, 5)]
    for _ in range(40):
        parent, _ = rng.choice(nodes)
        child = parent + [rng.randrange(2, 40)] * rng.randrange(30)
        nodes.append((child[:400], rng.randrange(12)))
    rng.shuffle(nodes)
    answers = generate(
        server,
        input_ids=[ids for ids, _ in nodes],
        sampling_params=[
            {"max_new_tokens": count, "temperature": 0, "ignore_eos": True} for _, count in nodes
        ],
    )
    counts = [answer["meta_info"]["completion_tokens"] for answer in answers]
    assert counts == [count for _, count in nodes]
    assert not server.wait_until_idle()["has_leak"]


def test_a_shared_prefix_is_served_by_the_cache(server):
    httpx.post(f"{server.url}/flush_cache")
    prompt, asked = [2 + place % 40 for place in range(256)], {"max_new_tokens": 2}
    first = generate(server, input_ids=prompt, sampling_params=asked)["meta_info"]
    again = generate(server, input_ids=[*prompt, 7], sampling_params=asked)["meta_info"]
    assert first["cached_tokens"] == 0
    assert again["cached_tokens"] >= 240
    kit = {"return_logprob": True, "logprob_start_len": 0}
    scored = generate(server, input_ids=prompt, sampling_params=asked, **kit)["meta_info"]
    assert scored["cached_tokens"] == 0
    assert len(scored["input_token_logprobs"]) == 256


def test_a_stream_has_the_scores_of_the_prompt_too(server):
    body = {
        "text": "the tale",
        "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    whole = generate(server, **body)
    with httpx.stream("POST", f"{server.url}/generate", json={**body, "stream": True}) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    last = json.loads(events[-2])
    for name in ("input_token_logprobs", "output_token_logprobs"):
        assert last["meta_info"][name] == whole["meta_info"][name]


def test_the_kits_find_every_route_they_poll(server):
    for path in ("/health", "/health_generate", "/get_server_info", "/get_model_info", "/metrics"):
        assert httpx.get(server.url + path, timeout=30).status_code == 200
    assert httpx.get(f"{server.url}/flush_cache").status_code == 200
    info = httpx.get(f"{server.url}/get_model_info").json()
    assert {"model_path", "tokenizer_path", "is_generation"} <= set(info)
