"""Routers from the package index, unchanged, in front of a prefill and a decode server."""

import json
import shutil
import subprocess

import httpx
import pytest
from support.role_servers import BODY, TEXT, assert_clean, free_port
from support.served import LONG_S, wait_for

ROUTERS = {
    "sglang-router": ("launch", "--pd-disaggregation"),
    "smg": ("launch", "--pd-disaggregation"),
    "vllm-router": ("--vllm-pd-disaggregation",),
}
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": TEXT}],
    "max_tokens": 16,
    "temperature": 0.7,
    "seed": 7,
}


@pytest.fixture(scope="module", name="router", params=ROUTERS)
def running_router(request, servers, tmp_path_factory):
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed (pip install {name})")
    prefill, decode, _, bootstrap_port = servers
    port, log = free_port(), tmp_path_factory.mktemp("router") / "log"
    command = [name, *ROUTERS[name], "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prefill", prefill.url, str(bootstrap_port), "--decode", decode.url]
    command += ["--policy", "round_robin", "--prometheus-port", str(free_port())]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"

    def is_ready():
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(url + "/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_for(is_ready)
        yield lambda path, body: httpx.post(url + path, json=body, timeout=LONG_S)
    finally:
        process.kill()
        process.wait()


def whole_text(response):
    """The text of a stream of events."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return "".join(each.get("text", each.get("delta", {}).get("content")) or "" for each in choices)


@pytest.mark.slow
def test_a_router_gets_the_answers_of_one_server(router, servers, request):
    prefill, decode, single, _ = servers
    name = request.node.callspec.params["router"]
    before = decode.invariants["transfers"]["total_done"]
    bodies = [
        ("/v1/completions", {**BODY, "prompt": f"{name} {TEXT}"}),
        ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": name + TEXT}]}),
    ]
    for path, body in bodies:
        right = single.post(path, body).json()["choices"][0]
        answer = router(path, body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0] == right
        streamed = router(path, {**body, "stream": True})
        assert streamed.status_code == 200, streamed.text
        assert whole_text(streamed) == right.get("text", right.get("message", {}).get("content"))
    assert decode.invariants["transfers"]["total_done"] == before + len(bodies)
    assert_clean(prefill, decode)
