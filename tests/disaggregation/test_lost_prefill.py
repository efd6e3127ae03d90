"""A prefill server that is lost behind a router: what the router makes of it."""

import contextlib
import itertools
import os
import signal

import pytest
from support.role_servers import BODY, TEXT, assert_clean, free_port
from support.router import FOLLOW_HEALTH, ROUTERS, RouterProcess, apart
from support.served import wait_for

REPEATS = {"sglang-router", "smg"}  # what one prefill server did not answer is sent to another


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTERS)
def test_a_lost_prefill_server_is_replaced_by_its_worker_or_by_another_server(
    servers, start, tmp_path, name
):
    other, decode, single, other_port = servers
    port = free_port()
    lost = start("prefill", port=port)
    flags = (*apart(name, lost, port, decode), "--prefill", other.url, str(other_port))
    numbers = itertools.count()

    def is_answered(router):
        body = {**BODY, "prompt": f"{name} {next(numbers)}: {TEXT}"}
        answer = router.post("/v1/completions", body)
        right = single.post("/v1/completions", body).json()["choices"]
        return answer.status_code == 200 and answer.json()["choices"] == right

    log = tmp_path / "log"
    with contextlib.closing(RouterProcess(name, log, *flags, *FOLLOW_HEALTH)) as router:
        os.kill(lost.invariants["worker_pid"], signal.SIGKILL)
        assert all(is_answered(router) for _ in range(4)), "its server starts a new worker"
        lost.process.kill()
        lost.process.wait()
        if name not in REPEATS:  # it goes on asking the lost one until its next look at health
            wait_for(lambda: is_answered(router) and is_answered(router))
        assert all(is_answered(router) for _ in range(4))
    assert_clean(other, decode)
