"""Whatever a field holds, the answer is an answer or a refusal, never a crash."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.route_bodies import BASES, fields_of

LONG = {"n", "max_tokens", "max_completion_tokens", "max_output_tokens"}  # valid, but slow
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-3, max_value=70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["off", "none", "auto", "text", "user"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "text", "steps"]), inner)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def fields(server):
    """The fields of every route, as our own schema lists them."""
    schema = server.get("/openapi.json").json()
    return {path: sorted(set(fields_of(schema, path)) - LONG) for path in BASES}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("path", BASES)
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(values=st.data())
@pytest.mark.slow
def test_no_value_of_any_field_is_a_server_error(server, fields, path, values):
    names = values.draw(st.lists(st.sampled_from(fields[path]), max_size=2, unique=True))
    body = BASES[path] | {name: values.draw(JSON, label=name) for name in names}
    response = server.post(path, body)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]
