"""Models, tokens, health and metrics."""

import re
from pathlib import Path

import pytest


def test_the_model_is_listed_by_its_name(client):
    (card,) = client.models.list().data
    assert card.id == "tiny"
    assert card.max_model_len == 4096
    assert client.models.retrieve("tiny").id == "tiny"


def test_tokens_go_to_text_and_back(server):
    made = server.post("/tokenize", {"prompt": "the tale", "return_token_strs": True}).json()
    assert made["count"] == len(made["tokens"])
    assert "".join(made["token_strs"]) == "the tale"
    back = server.post("/detokenize", {"tokens": made["tokens"]}).json()
    assert back == {"prompt": "the tale"}


def test_a_conversation_is_tokenised_as_its_template_writes_it(server):
    messages = [{"role": "user", "content": "the"}]
    made = server.post("/tokenize", {"messages": messages}).json()
    text = server.post("/detokenize", {"tokens": made["tokens"]}).json()["prompt"]
    assert text == "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens"])
def test_a_conversation_that_is_too_long_is_not_tokenised(server, path):
    messages = [{"role": "user", "content": "a" * 2**20}]
    response = server.post(path, {"messages": messages, "model": "tiny"})
    assert response.status_code == 400
    assert "may have 1048576; send it in parts" in response.text


def test_the_server_reports_its_health(server):
    assert server.get("/health").status_code == 200
    assert server.get("/health_generate").status_code == 200
    assert server.get("/version").json()["version"]


def test_routers_find_the_load(server):
    (load,) = server.get("/v1/loads").json()["loads"]
    assert load["num_total_reqs"] == load["num_running_reqs"] + load["num_waiting_reqs"]
    assert load["max_total_num_tokens"] == 16384
    assert 0 <= load["token_usage"] <= 1
    (older,) = server.get("/get_load").json()
    assert older["dp_rank"] == 0


@pytest.fixture(scope="module")
def metrics_after_an_answer(client, server):
    """Lines of /metrics after an answer with accepted drafts."""
    prompt = "the the the the the the the"
    client.completions.create(model="tiny", prompt=prompt, max_tokens=40, temperature=0)
    return server.get("/metrics").text.splitlines()


@pytest.mark.parametrize(
    "name",
    [
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens_total",
        "generation_tokens_total",
        "request_success_total",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "e2e_request_latency_seconds_count",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
        "device_busy_seconds_total",
        "engine_active_seconds_total",
        "forward_occupancy",
        "request_queue_time_seconds_count",
        "request_prefill_time_seconds_count",
        "request_decode_time_seconds_count",
        "steps_total",
        "eager_steps_total",
        "unrecordable_shapes_total",
        "failed_steps_total",
        "drafter_failures_total",
    ],
)
def test_metrics_have_the_names_of_vllm(metrics_after_an_answer, name):
    assert any(line.startswith(f"outrider:{name}{{") for line in metrics_after_an_answer)


def test_metrics_count_what_was_generated(client, server):
    def count(name):
        lines = server.get("/metrics").text.splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith(f"outrider:{name}{{")
        )

    before = {name: count(name) for name in ("generation_tokens_total", "request_success_total")}
    client.completions.create(
        model="tiny", prompt="the", max_tokens=10, n=2, extra_body={"ignore_eos": True}
    )
    assert count("generation_tokens_total") == before["generation_tokens_total"] + 20
    assert count("request_success_total") == before["request_success_total"] + 2


def test_the_schema_of_the_routes_is_there(server):
    paths = server.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate"} <= set(paths)
    operations = [operation for path in paths.values() for operation in path.values()]
    tags = {tag for operation in operations for tag in operation["tags"]}
    assert tags == {"Anthropic", "Ollama", "OpenAI", "Operation", "SGLang", "Tokens"}


def test_invariants_have_the_names_that_monitors_read(server):
    invariants = server.invariants
    assert invariants.keys() == {
        "queue",
        "rows",
        "pages",
        "prefix",
        "faults",
        "work",
        "transfers",
    } | {
        "open_calls",
        "worker_pid",
        "worker_pids",
        "is_idle",
        "has_leak",
    }
    assert invariants["work"].keys() == {"busy_s", "active_s", "counts"}
    assert invariants["work"]["counts"].keys() == {"steps", "eager", "unrecordable"}


def test_the_dashboard_shows_metrics_that_there_are(server):
    dashboard = (Path(__file__).parents[2] / "examples/serve/grafana.json").read_text()
    named = set(re.findall(r"outrider:\w+", dashboard))
    rendered = server.get("/metrics").text
    assert named
    assert [name for name in named if name not in rendered] == []


def test_the_page_and_its_parts_load_nothing_from_elsewhere(server):
    answer = server.get("/")
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert "<script>" not in answer.text
    parts = re.findall(r'(?:href|src)="(page/[^"]+)"', answer.text)
    assert len(set(parts)) == 4
    for part in parts:
        assert server.get(f"/{part}").status_code == 200
    assert server.get("/page/nothing.js").status_code == 404
    assert server.get("/page/..%2fapp.py").status_code == 404
