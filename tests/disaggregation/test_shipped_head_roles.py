"""The default model with its shipped head, in three processes: prefill, decode and a router."""

import contextlib

import pytest
from support.role_servers import KEY, USUAL_BACKEND, arrived, assert_clean, free_port
from support.router import RouterProcess, apart, single
from support.served import ServerProcess

from outrider.hub.aliases import DEFAULT_ALIAS

TEXT = (
    "The Rhine is a river of about 1230 kilometres. It rises in the Alps and ends in the sea. " * 8
)
QUESTION = {"role": "user", "content": TEXT + "What is said about the Rhine? Explain in detail."}
BODY = {
    "model": "smollm2",
    "messages": [QUESTION],
    "max_tokens": 40,
    "trace": True,
    "temperature": 0.0,
    "seed": 11,
}
TOKEN_BYTES = 2 * 30 * 3 * 64 * 2  # at least: keys and values, layers, heads, channels, bfloat16
SETTINGS = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "logprobs": True, "top_logprobs": 3},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.3},
    "grammar": {"temperature": 0.7, "structured_outputs": {"regex": "The Rhine [a-z ,]{40,90}"}},
}


@pytest.fixture(scope="module", name="roles")
def prefill_and_decode(smollm2_folder, tmp_path_factory):
    """Both servers, one without a role, and the port of the first's side channel."""
    del smollm2_folder  # the model is cached now
    logs, port = tmp_path_factory.mktemp("roles"), free_port()
    flags = ("--served-model-name", "smollm2", "--no-adaptive", "--kv-tokens", "4096")
    flags += ("--disaggregation-transfer-backend", USUAL_BACKEND, "--no-check-draft")

    def start(mode, *more):
        own = ("--disaggregation-mode", mode, *flags, *more)
        return ServerProcess(DEFAULT_ALIAS, logs / mode, *own, environment=KEY)

    with contextlib.ExitStack() as held:
        servers = []
        for mode, more in (
            ("prefill", ("--disaggregation-bootstrap-port", str(port))),
            ("decode", ()),
            ("null", ()),
        ):
            servers.append(start(mode, *more))
            held.callback(servers[-1].process.wait)
            held.callback(servers[-1].process.kill)
        yield (*servers, port)


@pytest.fixture(scope="module", name="router")
def running_vllm_router(roles, tmp_path_factory):
    """vllm-router passes on fields that it does not know, such as `trace`; the others drop them."""
    flags = apart("vllm-router", roles[0], roles[3], roles[1])
    log = tmp_path_factory.mktemp("router") / "log"
    with contextlib.closing(RouterProcess("vllm-router", log, *flags)) as router:
        yield router


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_and_rounds_are_those_of_one_server(roles, router, name):
    prefill, decode, one, _ = roles
    body = {**BODY, **SETTINGS[name], "cache_salt": name}  # each computes its prompt
    before = arrived(decode)
    answer, alone = (each.post("/v1/chat/completions", body) for each in (router, one))
    assert answer.status_code == 200, answer.text
    answers = [each.json(parse_float=single) for each in (answer, alone)]
    done, num_bytes = (now - then for now, then in zip(arrived(decode), before, strict=True))
    assert done == 1
    assert num_bytes > 150 * TOKEN_BYTES
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    (routed,), (right,) = (each["choices"] for each in answers)
    assert routed == right
    assert any(len(each["path"]) > 1 for each in right["rounds"]), "no draft was accepted"
    assert_clean(prefill, decode)
