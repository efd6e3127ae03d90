"""Routers from the package index, unchanged: before whole servers, and before roles apart."""

import contextlib

import pytest
from support.role_servers import BODY, TEXT, assert_clean
from support.router import ROUTERS, RouterProcess, apart, whole_text

CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": TEXT}],
    "max_tokens": 16,
    "temperature": 0.7,
    "seed": 7,
}


def bodies(name):
    """Requests whose prompts no other test has sent."""
    return [
        ("/v1/completions", {**BODY, "prompt": f"{name} {TEXT}"}),
        ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": name + TEXT}]}),
    ]


def assert_same_answers(router, single, asked):
    """Whole and streamed answers are those of a server without a router."""
    for path, body in asked:
        right = single.post(path, body).json()["choices"][0]
        answer = router.post(path, body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0] == right
        streamed = router.post(path, {**body, "stream": True})
        assert streamed.status_code == 200, streamed.text
        assert whole_text(streamed) == right.get("text", right.get("message", {}).get("content"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTERS)
def test_roles_apart_answer_as_one_server(servers, tmp_path, name):
    prefill, decode, single, port = servers
    before = decode.invariants["transfers"]["total_done"]
    flags = apart(name, prefill, port, decode)
    with contextlib.closing(RouterProcess(name, tmp_path / "log", *flags)) as router:
        assert_same_answers(router, single, bodies(name))
    assert decode.invariants["transfers"]["total_done"] == before + 2
    assert_clean(prefill, decode)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTERS)
def test_a_whole_server_answers_as_without_a_router(servers, tmp_path, name):
    single = servers[2]
    flags = ("--worker-urls", single.url, "--policy", "round_robin")
    with contextlib.closing(RouterProcess(name, tmp_path / "log", *flags)) as router:
        assert_same_answers(router, single, bodies(f"plain {name}"))
    assert_clean(single)
