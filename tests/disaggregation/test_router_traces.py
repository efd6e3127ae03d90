"""Prefill server, decode server and a real router: the rounds of one server, however it drafts.

Acceptance alone betrays draft state that was lost on the way, so whole rounds are compared.
"""

import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.role_folders import WRITERS, write_model
from support.role_servers import KEY, USUAL_BACKEND, arrived, assert_clean, free_port
from support.router import RouterProcess, apart, single
from support.served import ServerProcess

FLAGS = (
    *("--served-model-name", "tiny", "--no-adaptive", "--kv-tokens", "2048"),
    *("--max-num-seqs", "4", "--no-check-draft"),
)
BACKENDS = dict(zip(WRITERS, itertools.cycle([USUAL_BACKEND, "tcp"]), strict=False))
TEXT = "the cat, the dog, the cat and the 4 dogs: a quick brown fox jumps over. "
BODY = {"model": "tiny", "max_tokens": 20, "trace": True, "temperature": 0.0, "seed": 5}
SETTINGS = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.95},
    "penalties": {
        **{"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.4},
        **{"frequency_penalty": 0.2, "logit_bias": {"7": 3.0}},
    },
    "grammar": {"temperature": 0.7, "structured_outputs": {"regex": "[a-e ]{12,16}"}},
    "log-probabilities": {"temperature": 0.9, "logprobs": True, "top_logprobs": 3},
}


@pytest.fixture(name="start")
def servers_of_one_model(tmp_path):
    """Starts a server of each role and one without at the same time; they end with the test."""
    with contextlib.ExitStack() as held, ThreadPoolExecutor(3) as pool:

        def start_one(name, folder, *flags):
            server = ServerProcess(folder, tmp_path / name, *flags, environment=KEY)
            held.callback(server.process.wait)
            held.callback(server.process.kill)
            return server

        def start(name):
            folder, port = tmp_path / "model", free_port()
            flags = (*FLAGS, *write_model(name, folder))
            roles = (*flags, "--disaggregation-transfer-backend", BACKENDS[name])
            roles += ("--disaggregation-mode",)
            prefill = (*roles, "prefill", "--disaggregation-bootstrap-port", str(port))
            starting = [
                pool.submit(start_one, "prefill", folder, *prefill),
                pool.submit(start_one, "decode", folder, *roles, "decode"),
                pool.submit(start_one, "single", folder, *flags),
            ]
            return *(each.result() for each in starting), port

        yield start


def compare(router, decode, one, setting):
    """The rounds of an answer by the router, which is that of one server without a role."""
    asked = {**BODY, **SETTINGS[setting]}
    asked["messages"] = [{"role": "user", "content": f"{setting}: {TEXT}"}]
    before = arrived(decode)
    answers = [each.post("/v1/chat/completions", asked) for each in (router, one)]
    assert [each.status_code for each in answers] == [200, 200], answers[0].text
    routed, right = (each.json(parse_float=single) for each in answers)
    assert routed["choices"] == right["choices"], setting
    assert bool(right["choices"][0]["logprobs"]) == (setting == "log-probabilities")
    done, num_bytes = (now - then for now, then in zip(arrived(decode), before, strict=True))
    assert done == 1, f"{setting}: the KV did not come"
    assert num_bytes > 0
    assert right["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    return right["choices"][0]["rounds"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_tokens_and_rounds_are_those_of_one_server(start, tmp_path, name):
    prefill, decode, one, port = start(name)
    flags = apart("vllm-router", prefill, port, decode)
    with contextlib.closing(RouterProcess("vllm-router", tmp_path / "router", *flags)) as router:
        rounds = [each for setting in SETTINGS for each in compare(router, decode, one, setting)]
    assert any(len(each["nodes"]) > 1 for each in rounds) == (name != "none")
    counts = decode.invariants["transfers"]
    assert (counts["total_done"], counts["total_failed"]) == (len(SETTINGS), 0)
    assert_clean(prefill, decode)
