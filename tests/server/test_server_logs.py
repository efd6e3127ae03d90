"""What a server logs: requests, refusals, load; as text and as JSON."""

import asyncio
import json
import logging
from pathlib import Path

import pytest
from support.served import ServerProcess, wait_for

from outrider.config.log_settings import JsonFormatter, facts
from outrider.server.metric_names import SGLANG
from outrider.server.metrics import Meter, ServerTotals
from outrider.server.status_log import log_status, status_between


def test_a_status_has_the_rates_of_its_period() -> None:
    before = ServerTotals(tokens=100, prompt_tokens=10, rounds=40, drafted=80, accepted=30)
    now = ServerTotals(
        running=2,
        waiting=1,
        kv_cache_usage=0.25,
        tokens=150,
        prompt_tokens=110,
        rounds=60,
        drafted=120,
        accepted=60,
    )
    status = status_between(before, now, 10.0)
    assert str(status) == (
        "running 2, waiting 1, 10.0 prompt tokens/s, 5.0 tokens/s, "
        "acceptance 75% (2.50 tokens per round), KV cache 25.0% in use"
    )


def test_a_period_without_work_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter("m")

    async def watch() -> None:
        reporting = asyncio.create_task(log_status(meter, period_s=0.01))
        await asyncio.sleep(0.05)
        assert not caplog.records
        meter.totals = ServerTotals(tokens=5)
        while not caplog.records:
            await asyncio.sleep(0.01)
        reporting.cancel()

    with caplog.at_level(logging.INFO, "outrider"):
        asyncio.run(asyncio.wait_for(watch(), 30))


def test_a_json_line_has_the_facts_of_its_record() -> None:
    record = logging.LogRecord("outrider.x", logging.INFO, "x.py", 1, "a %s\nb", ("line",), None)
    record.__dict__.update(facts(status=200))
    line = JsonFormatter("server").format(record)
    assert "\n" not in line
    parsed = json.loads(line)
    assert parsed["message"] == "a line\nb"
    assert (parsed["level"], parsed["process"], parsed["status"]) == ("info", "server", 200)


def test_metrics_that_vllm_has_are_also_under_its_names() -> None:
    meter = Meter("m: outrider:x")
    lines = meter.render().decode().splitlines()
    counters = [line for line in lines if line.startswith("vllm:spec_decode_num_")]
    assert 'vllm:spec_decode_num_drafts_total{model_name="m: outrider:x"} 0.0' in counters
    assert not [line for line in lines if line.startswith("vllm:") and "_created" in line]
    assert not [line for line in lines if line.startswith("vllm:worker_restarts")]


def test_metrics_that_sglang_has_are_also_under_its_names() -> None:
    meter = Meter("m: outrider:prompt_tokens")
    meter.note_waiting(3)
    meter.note_rates(tokens_per_s=5.0, accept_length=2.5, accept_rate=0.5)
    lines = meter.render().decode().splitlines()
    theirs = [line for line in lines if "sglang:" in line]
    label = '{model_name="m: outrider:prompt_tokens"}'
    for name, value in (
        ("num_queue_reqs", 3.0),
        ("gen_throughput", 5.0),
        ("spec_accept_length", 2.5),
        ("prompt_tokens_total", 0.0),
        ("spec_verify_calls_total", 0.0),
        ("prompt_tokens_histogram_count", 0.0),
    ):
        assert f"sglang:{name}{label} {value}" in theirs
    assert "# TYPE sglang:token_usage gauge" in theirs
    assert "# TYPE sglang:cached_tokens_total counter" in theirs
    assert not [line for line in theirs if "_created" in line]
    names = {line.split("{")[0] for line in lines if not line.startswith("#")}
    assert sum(name.startswith("sglang:") for name in names) > len(SGLANG.theirs)


def test_docs_load_nothing_from_other_hosts(server: ServerProcess) -> None:
    page = server.get("/docs").text
    assert 'src="/docs/swagger-ui-bundle.js"' in page
    assert "https://" not in page
    assert "SwaggerUIBundle" in server.get("/docs/swagger-ui-bundle.js").text
    assert server.get("/docs/swagger-ui.css").headers["content-type"].startswith("text/css")
    assert server.get("/docs/..%2fcore.py").status_code == 404


@pytest.mark.slow
def test_a_server_logs_requests_refusals_and_load_as_json(
    served_folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    server = ServerProcess(served_folder, log, "--log-format", "json", "--log-level", "debug")
    try:
        body = {"model": "none", "messages": [{"role": "user", "content": "a"}]}
        assert server.post("/v1/chat/completions", body).status_code == 404
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 20}
        body |= {"temperature": 0, "ignore_eos": True}
        assert server.post("/v1/chat/completions", body).status_code == 200
        wait_for(lambda: '"running"' in log.read_text(), within_s=60)
    finally:
        server.process.terminate()
        server.process.wait(60)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert {line["process"] for line in lines} == {"server", "worker"}
    statuses = [line["status"] for line in lines if line.get("path") == "/v1/chat/completions"]
    assert statuses == [404, 200]
    assert any("answering 404: there is no model 'none'" in line["message"] for line in lines)
    (load,) = [line for line in lines if "tokens_per_s" in line][:1]
    assert 0 < load["tokens_per_s"] <= 2.0  # 20 tokens within 10 s; a busy server needs longer
