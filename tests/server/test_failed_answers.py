"""A request that fails in the same way each time: no answer says "try again"."""

import json
from typing import Any

import httpx
import pytest
from support.route_bodies import BASES
from support.served import ServerProcess

# The vocabulary has no capital letter.
NOTHING = {"structured_outputs": {"regex": "the[A-Z]"}, "max_tokens": 8, "temperature": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_request_that_leaves_no_token_is_answered_400(server: ServerProcess, path: str) -> None:
    body = {**BASES[path], **NOTHING}
    whole = server.post(path, body)
    assert whole.status_code == 400
    assert not {"retry-after", "x-should-retry"} & whole.headers.keys()
    error = whole.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_failed")
    assert error["message"].endswith("relax one of them")
    assert last_event(server.post(path, {**body, "stream": True})) == whole.json()


def last_event(response: httpx.Response) -> Any:
    """The last event before the end of a stream."""
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    return json.loads(lines[-1].removeprefix("data: "))
