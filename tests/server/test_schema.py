"""Requests made from our own OpenAPI schema, valid and not: none of them is a server error."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

schemathesis = pytest.importorskip("schemathesis")

_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
_MAX_TOKENS = 4  # of an answer: its length is not what is tested here


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_no_request_of_the_schema_is_a_server_error(server, mode):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    num_cases = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=12,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case):
            nonlocal num_cases
            num_cases += 1
            _shorten(case.body)
            response = case.call(timeout=60)
            assert response.status_code < 500, f"{case.method} {case.path}: {response.text}"

        with suppress(Unsatisfiable):  # a route without fields has no invalid request
            call()
    assert num_cases > 60


def _shorten(body):
    """Limit the answer of every request that has a field for its length."""
    if isinstance(body, dict):
        for name in _LENGTHS:
            if isinstance(body.get(name), int) and body[name] > _MAX_TOKENS:
                body[name] = _MAX_TOKENS
        if "messages" in body or "prompt" in body:
            body.setdefault("max_tokens", _MAX_TOKENS)
        _shorten(body.get("sampling_params"))
