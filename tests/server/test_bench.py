"""`outrider bench serve` against our own server."""

import json

import pytest

from outrider.cli.main import run


@pytest.mark.parametrize("pattern", [("--concurrency", "3"), ("--rate", "50")])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.slow
def test_a_load_on_our_server_is_measured(server, tmp_path, pattern, endpoint):
    prompts, report = tmp_path / "prompts.jsonl", tmp_path / "report.json"
    lines = [json.dumps({"prompt": f"the tale of the tale {n}"}) for n in range(4)]
    prompts.write_text("\n".join(lines))
    load = ("--prompts", str(prompts), "--num", "6", "--max-tokens", "24", "--ignore-eos")
    where = ("--base-url", server.url, "--endpoint", endpoint, "--json", str(report))
    assert run(["bench", "serve", *load, *where, *pattern]) == 0
    measured = json.loads(report.read_text())
    summary = measured["summary"]
    assert (summary["answered"], summary["failed"]) == (6, {})
    assert summary["output_tokens"] == 6 * 24
    assert summary["answers_counted_by_server"] == 6
    assert measured["acceptance"][0]["accept_length"] >= 1
