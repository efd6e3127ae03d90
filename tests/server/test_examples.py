"""The examples work as they stand, but for the address and the name of the model."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples/serve"


def run_script(name, server, model):
    """What a script prints against this server."""
    code = (FOLDER / name).read_text()
    assert "http://127.0.0.1:8000" in code
    code = code.replace("http://127.0.0.1:8000", server.url)
    code = code.replace("smollm2-135m-instruct", model)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_openai_client_streams_and_tells_of_speculation(server):
    printed = run_script("openai_client.py", server, "tiny")
    assert "repeats this answer]" in printed
    assert "mean_acceptance_length" in printed


@pytest.mark.slow
def test_langchain_streams(server):
    pytest.importorskip("langchain_openai", reason="pip install langchain-openai")
    assert run_script("langchain_client.py", server, "tiny").strip()


def test_curl_reaches_every_family_of_routes(server):
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    script = str(FOLDER / "curl.sh")
    done = subprocess.run(
        ["bash", script, server.url], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    answers = [json.loads(line) for line in lines]
    assert not any(answer.get("error") for answer in answers)
    kinds = [answer.get("object", "other") for answer in answers]
    assert kinds == ["list", "text_completion", "response", "other", "other"]
    assert "data: [DONE]" in done.stdout
    assert "spec_decode_num_drafts_total" in done.stdout
