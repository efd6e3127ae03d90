"""Routers from the package index in front of real servers."""

import contextlib
import importlib.util
import json
import struct
import subprocess
import sys

import httpx
import pytest

from support.role_servers import free_port
from support.served import LONG_S, wait_for

# The module that starts each, its command, and the flag for prefill and decode apart. By module:
# sglang-router and smg both install a script of the name smg.
ROUTERS = {
    "sglang-router": ("sglang_router.cli", ("launch",), "--pd-disaggregation"),
    "smg": ("smg.cli", ("launch",), "--pd-disaggregation"),
    "vllm-router": ("vllm_router.launch_router", (), "--vllm-pd-disaggregation"),
}
FOLLOW_HEALTH = (
    *("--health-check-interval-secs", "1", "--health-success-threshold", "1"),
    *("--health-failure-threshold", "1"),
)


class RouterProcess:
    """Owns a router on a free port, from its first good health to its end."""

    def __init__(self, name, log, *flags):
        module, command, _ = ROUTERS[name]
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"{name} is not installed (pip install {name})")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        start = [sys.executable, "-c", f"from {module} import main; main()", *command]
        start += ["--host", "127.0.0.1", "--port", str(port), *flags]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*start, "--prometheus-port", str(free_port())], stdout=output, stderr=output
            )
        self._log, self._client = log, httpx.Client(timeout=LONG_S)
        servers = {each for each in flags if each.startswith("http")}
        # vllm-router asks its servers before it listens; the others add them later.
        wait_for(self._is_up if name == "vllm-router" else lambda: servers == {*self.healthy})

    def _is_up(self):
        assert self.process.poll() is None, self._log.read_text()
        with contextlib.suppress(httpx.HTTPError):  # it starts
            return self._client.get(self.url + "/health", timeout=5).status_code == 200
        return False

    @property
    def healthy(self):
        """URLs of the servers that sglang-router or smg sends requests to."""
        if not self._is_up():
            return []
        workers = self._client.get(self.url + "/workers").json()["workers"]
        return [each["url"] for each in workers if each["is_healthy"]]

    def post(self, path, body):
        return self._client.post(self.url + path, json=body)

    def close(self):
        self._client.close()
        self.process.kill()
        self.process.wait()


def apart(name, prefill, bootstrap_port, decode):
    """The flags of a router for a prefill and a decode server."""
    servers = ("--prefill", prefill.url, str(bootstrap_port), "--decode", decode.url)
    return (ROUTERS[name][2], *servers, "--policy", "round_robin")


def single(text):
    """A number in the precision that servers have: routers write numbers anew."""
    return struct.unpack("f", struct.pack("f", float(text)))[0]


def answers_of(response):
    """What must be equal of an answer in the form of any route: all but names and times."""
    found = response.json(parse_float=single)
    if "meta_info" in found:
        scores = {key: value for key, value in found["meta_info"].items() if "logprobs" in key}
        return [{"text": found["text"], "output_ids": found["output_ids"], **scores}]
    if found.get("type") == "message":
        return [found["content"]]
    return found.get("choices") or [each["content"] for each in found["output"]]


def prompt_length(response):
    """How many tokens the prompt had, in the form of any route."""
    found = response.json()
    counts = found["meta_info"] if "meta_info" in found else found["usage"]
    return counts["prompt_tokens"] if "prompt_tokens" in counts else counts["input_tokens"]


def whole_text(response):
    """The text of a stream of events, in the form of any route."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    if "meta_info" in events[-1]:  # each event repeats the whole text
        return events[-1]["text"]
    if "response" in events[-1]:
        return "".join(each["delta"] for each in events if each["type"].endswith("text.delta"))
    if events[0].get("type") == "message_start":
        return "".join(each.get("delta", {}).get("text", "") for each in events)
    choices = [choice for each in events for choice in each["choices"]]
    choices.sort(key=lambda choice: choice["index"])
    return "".join(each.get("text", each.get("delta", {}).get("content")) or "" for each in choices)


def text_of(answers):
    """The text of what `answers_of` returns."""
    if isinstance(answers[0], list):
        return "".join(part["text"] for content in answers for part in content)
    return "".join(
        each["text"] if "text" in each else each["message"]["content"] for each in answers
    )
