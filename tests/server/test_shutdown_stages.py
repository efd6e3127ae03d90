"""After a signal a server leaves, drains and ends; routers lose no request between the stages."""

import signal
import subprocess

import httpx
import pytest
from support.bare_server import bare_server
from support.served import LONG_S, wait_for


def stages(client):
    answer = client.get("/health").json()
    return answer["is_leaving"], answer["is_draining"]


def test_a_server_that_leaves_answers_until_it_drains():
    with (
        bare_server(client_s=LONG_S, grace_s=LONG_S, delay_s=LONG_S) as bare,
        httpx.Client(base_url=bare.url, timeout=LONG_S) as client,
    ):
        assert stages(client) == (False, False)
        bare.process.send_signal(signal.SIGTERM)
        wait_for(lambda: stages(client)[0])
        with pytest.raises(subprocess.TimeoutExpired):
            bare.process.wait(0.3)
        assert stages(client) == (True, False)  # it leaves, and still takes requests
        bare.process.send_signal(signal.SIGTERM)  # do not wait for the delay
        assert bare.process.wait(LONG_S) == 0


@pytest.mark.slow
def test_the_delay_ends_by_itself():
    with bare_server(client_s=LONG_S, grace_s=LONG_S, delay_s=0.3) as bare:
        bare.process.send_signal(signal.SIGTERM)
        assert bare.process.wait(LONG_S) == 0
