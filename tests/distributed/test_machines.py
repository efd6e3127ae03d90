"""Several machines: here two servers on one, which find each other by an address."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from support.processes import descendants_of, is_running, wait_for_end
from support.served import ServerProcess, wait_for
from support.spoken import tiny_llama, write_tokenizer

from outrider import LLM, SamplingParams

MAIN = "from outrider.cli.main import main; main()"
FLAGS = ("--served-model-name", "tiny", "--draft", "none", "--tp", "2", "--nnodes", "2")
KEY = {"OUTRIDER_RANKS_KEY": "a secret of the test", "OMP_NUM_THREADS": "1"}
BODY = {"model": "tiny", "prompt": "the", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module", name="folder")
def model_with_text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("machines")
    tiny_llama(512).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(name="address")
def free_address():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


@pytest.fixture(name="start_node")
def start_and_end_nodes(folder, address):
    started = []

    def start(node, *flags, environment=KEY):
        flags = (*FLAGS, "--node-rank", str(node), "--dist-init-addr", address, *flags)
        command = [sys.executable, "-c", MAIN, "serve", "--model", str(folder), "--device", "cpu"]
        started.append(
            subprocess.Popen(
                [*command, *flags, "--port", "0"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **environment},
            )
        )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_machines_answer_survive_a_lost_rank_and_end_together(
    folder, address, start_node, tmp_path
):
    node = start_node(1)
    flags = (*FLAGS, "--dist-init-addr", address)
    server = ServerProcess(folder, tmp_path / "log", *flags, environment=KEY)
    try:
        llm = LLM(folder, draft="none", device="cpu")
        answer = server.post("/v1/completions", BODY).json()["choices"][0]["text"]
        params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
        (first,) = llm.generate("the", params)
        assert answer == first.outputs[0].text
        ranks = server.get("/server_info").json()["ranks"]
        assert ranks[1]["pid"] in descendants_of(node.pid)
        os.kill(ranks[1]["pid"], signal.SIGKILL)
        wait_for(lambda: not is_running(ranks[0]["pid"]))
        wait_for(lambda: server.get("/health").status_code == 200, within_s=90)
        assert server.post("/v1/completions", BODY).json()["choices"][0]["text"] == answer
        newer = server.get("/server_info").json()["ranks"][1]["pid"]
        assert newer in descendants_of(node.pid)
        assert server.stop() == 0
        assert node.wait(30) == 0
        wait_for_end(newer)
    finally:
        server.process.kill()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_machine_with_other_flags_ends_all_and_names_the_difference(start_node):
    nodes = [start_node(0), start_node(1, "--kv-tokens", "512")]
    for node in nodes:
        told, _ = node.communicate(timeout=120)
        assert node.returncode != 0
        assert "machine 1 has another cache.kv_tokens (512) than machine 0 ('auto')" in told
        assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_machine_that_never_comes_ends_the_start(start_node):
    nodes = [start_node(0, "--dist-timeout", "1")]
    told, _ = nodes[0].communicate(timeout=120)
    assert "--node-rank 1 did not come to 127.0.0.1:" in told
    assert "within 1 s" in told
    late = start_node(1, "--dist-timeout", "1")
    told, _ = late.communicate(timeout=120)
    assert "machine 0 did not answer at 127.0.0.1:" in told
    assert [nodes[0].returncode, late.returncode] == [1, 1]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_machines_need_a_secret_and_a_free_port(start_node, address):
    told, _ = start_node(0, environment={"OUTRIDER_RANKS_KEY": ""}).communicate(timeout=60)
    assert "set OUTRIDER_RANKS_KEY" in told
    host, _, port = address.partition(":")
    with socket.socket() as busy:
        busy.bind((host, int(port)))
        busy.listen()
        told, _ = start_node(0).communicate(timeout=60)
    assert f"cannot listen on {address} (Address already in use)" in told
