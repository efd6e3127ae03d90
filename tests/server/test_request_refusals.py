"""Wrong, odd and hostile requests are answered with an error in one format."""

import json
import socket
import time

import httpx
import pytest

CHAT = {"messages": [{"role": "user", "content": "the"}], "max_tokens": 2}
TEXT = {"prompt": "the", "max_tokens": 2}
DEEP = json.loads("[" * 40 + "]" * 40)

WRONG_CHATS = {
    "no messages": {"messages": []},
    "messages of another type": {"messages": "the"},
    "a message without a role": {"messages": [{"content": "the"}]},
    "a role of another type": {"messages": [{"role": 5, "content": "the"}]},
    "a picture": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "no content": {"messages": [{"role": "user"}]},
    "half a surrogate": {"messages": [{"role": "user", "content": "\ud800"}]},
    "an unknown field": {"temprature": 1},
    "temperature as text": {"temperature": "1"},
    "temperature below zero": {"temperature": -1},
    "temperature that is no number": {"temperature": float("nan")},
    "endless temperature": {"temperature": float("inf")},
    "top_p of zero": {"top_p": 0},
    "n of zero": {"n": 0},
    "n of a million": {"n": 1_000_000},
    "n as a flag": {"n": True},
    "no tokens": {"max_tokens": 0},
    "tokens below zero": {"max_tokens": -5},
    "a seed too large": {"seed": 2**63},
    "a seed out of this world": {"seed": 10**40},
    "a stop of another type": {"stop": 5},
    "an empty stop": {"stop": [""]},
    "too many stops": {"stop": ["x"] * 1000},
    "bias of a token that is none": {"logit_bias": {"the": 1}},
    "bias past the vocabulary": {"logit_bias": {"999999": 1}},
    "bias past all bounds": {"logit_bias": {str(10**30): 1}},
    "bias too strong": {"logit_bias": {"5": 1e9}},
    "a penalty out of range": {"presence_penalty": 9},
    "a stop id past the vocabulary": {"stop_token_ids": [10**20]},
    "top_logprobs without logprobs": {"top_logprobs": 2},
    "too many top_logprobs": {"logprobs": True, "top_logprobs": 21},
    "speculation of another type": {"speculative": "sometimes"},
    "speculation without end": {"speculative": {"steps": 10**30}},
    "stream as text": {"stream": "yes"},
    "more tokens at least than at most": {"min_tokens": 5},
    "template variables of another type": {"chat_template_kwargs": [1]},
    "a context overflow": {"messages": [{"role": "user", "content": "the " * 5000}]},
}
NOT_YET = {
    "suffix": ("/v1/completions", {**TEXT, "suffix": "end"}),
    "previous_response_id": (
        "/v1/responses",
        {"input": "the", "previous_response_id": "resp_1"},
    ),
    "sampling_params.stop_regex": (
        "/generate",
        {"text": "a", "sampling_params": {"stop_regex": "a*"}},
    ),
}
WRONG_BODIES = [b"", b"{", b"null", b"5", b"[]", b'"the"', b"\xff\xfe", b"{}", b'{"a":1}' * 3]
POSTS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/generate",
    "/tokenize",
    "/detokenize",
]


def post_raw(server, path, content, **headers):
    headers = {"Content-Type": "application/json", **headers}
    return httpx.post(server.url + path, content=content, headers=headers, timeout=30)


def assert_is_error(response, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in response.text
    assert "/work" not in response.text
    assert ".py" not in response.text
    return error


@pytest.mark.parametrize("name", WRONG_CHATS)
def test_a_wrong_chat_is_refused_with_the_reason(server, name):
    body = json.dumps(CHAT | WRONG_CHATS[name])
    assert_is_error(post_raw(server, "/v1/chat/completions", body.encode()))


UNFIT = {
    "too many stops": ({"stop": ["x"] * 1000}, "stop", "stop: List should have at most 64 items"),
    "a long stop": ({"stop": "x" * 2000}, "stop", "stop: String should have at most 1024"),
    "a long stop of two": ({"stop": ["x", "x" * 2000]}, "stop", "stop.1: String should have at"),
    "a stop of no type": ({"stop": 5}, "stop", "valid string; or stop: Input should be a valid li"),
    "no prompts": ({"prompt": []}, "prompt", "prompt: List should have at least 1 item"),
    "too many prompts": (
        {"prompt": ["a"] * 1025},
        "prompt",
        "prompt: List should have at most 1024",
    ),
    "a prompt of no type": ({"prompt": {"a": 1}}, "prompt", "prompt: Input should be a valid str"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_value_that_fits_no_form_is_refused_for_what_is_wrong_with_it(server, name):
    fields, param, reason = UNFIT[name]
    error = assert_is_error(server.post("/v1/completions", {**TEXT, **fields}))
    assert error["param"] == param
    assert reason in error["message"]
    assert "constrained" not in error["message"]


def test_json_that_is_sent_as_something_else_is_refused_with_the_header_it_needs(server):
    body = json.dumps(CHAT).encode()
    forms = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl -d sends by default
    error = assert_is_error(post_raw(server, "/v1/chat/completions", body, **forms))
    assert "Content-Type: application/json" in error["message"]


@pytest.mark.parametrize(
    ("path", "short", "headers"),
    [
        ("/v1/chat/completions", {"max_tokens": 2}, {}),  # as LiteLLM sends some bodies
        ("/api/chat", {"options": {"num_predict": 2}}, {}),
        (
            "/api/chat",
            {"options": {"num_predict": 2}},
            {"Content-Type": "application/x-www-form-urlencoded"},  # ollama's manual
        ),
    ],
)
def test_a_body_without_the_type_of_json_is_taken_unless_a_page_of_another_site_sent_it(
    server, path, short, headers
):
    asked = {"model": "tiny", "messages": CHAT["messages"], "stream": False, **short}
    body = json.dumps(asked).encode()
    here = {"Origin": server.url}

    def status(**more):
        found = httpx.post(server.url + path, content=body, headers={**headers, **more}, timeout=30)
        return found.status_code

    assert status() == status(**here) == 200
    assert status(Origin="https://elsewhere.example") == status(Origin="null") == 400


@pytest.mark.parametrize(
    "path", ["/sleep?level=0", "/wake_up", "/reset_prefix_cache", "/flush_cache"]
)
def test_a_page_of_another_site_cannot_operate_the_server(server, path):
    origin = {"Origin": "https://elsewhere.example"}
    assert httpx.post(server.url + path, headers=origin, timeout=30).status_code == 403
    assert server.get("/is_sleeping").json() == {"is_sleeping": False}


def test_an_image_on_a_page_of_another_site_cannot_flush_the_cache(server):
    for sent in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port of this host
        {"Referer": "https://elsewhere.example/page"},
    ):
        assert server.get("/flush_cache", headers=sent).status_code == 403
    for sent in ({}, {"Sec-Fetch-Site": "none"}, {"Referer": f"{server.url}/docs"}):
        assert server.get("/flush_cache", headers=sent).status_code == 200


@pytest.mark.parametrize("name", NOT_YET)
def test_an_unsupported_field_is_refused_by_name(server, name):
    path, body = NOT_YET[name]
    error = assert_is_error(server.post(path, body))
    assert error["param"] == name
    assert "not supported yet" in error["message"]


@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_makes_no_sense_is_refused_everywhere(server, path):
    for body in WRONG_BODIES:
        assert_is_error(post_raw(server, path, body))


@pytest.mark.parametrize(
    "prompt", [[], [[]], "", 5, [5, "a"], [-1], [10**30], [999_999], [1.5], DEEP, [["a"]], {}]
)
def test_a_wrong_prompt_is_refused(server, prompt):
    assert_is_error(server.post("/v1/completions", {**TEXT, "prompt": prompt}))


@pytest.mark.parametrize("tokens", [[-1], [999_999], [10**30], ["a"], 5])
def test_tokens_out_of_the_vocabulary_are_refused(server, tokens):
    assert_is_error(server.post("/detokenize", {"tokens": tokens}))


def test_odd_but_valid_numbers_are_served(server):
    for odd in ({"top_k": 10**30}, {"temperature": 1e-300}, {"max_tokens": 10**30, "stop": "e"}):
        response = server.post("/v1/chat/completions", {**CHAT, **odd})
        assert response.status_code == 200, response.text


def test_a_path_that_is_not_there_is_not_found(server):
    assert_is_error(server.get("/v1/nothing"), 404)
    assert_is_error(server.get("/v1/chat/completions"), 405)


def test_a_body_beyond_the_limit_is_too_large(server):
    error = assert_is_error(post_raw(server, "/tokenize", b" " * (9 * 2**20)), 413)
    assert "smaller images" in error["message"]


def test_a_body_nested_beyond_the_limit_is_refused(server):
    deep = b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert "nests" in assert_is_error(post_raw(server, "/v1/completions", deep))["message"]


def test_headers_beyond_the_limit_are_refused(server):
    response = post_raw(server, "/tokenize", b'{"prompt":"a"}', **{"X-Long": "a" * 40_000})
    assert_is_error(response, 431)


@pytest.mark.parametrize(("size", "status"), [(20_000, b"200"), (40_000, b"431")])
def test_headers_that_come_in_parts_have_the_same_limit(server, size, status):
    """h11 refuses parts of 16 KB, unless it is told otherwise."""
    url = httpx.URL(server.url)
    head = f"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Long: {'a' * size}\r\n"
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        connection.sendall(head[:18_000].encode())
        time.sleep(0.2)  # so that the server reads this part alone
        connection.sendall(f"{head[18_000:]}\r\n".encode())
        assert connection.recv(4096).split()[1] == status


BACK = {
    "NaN in metadata": ("/v1/responses", b'{"input":"the","metadata":{"1":NaN}}', "NaN"),
    "infinity": ("/v1/responses", b'{"input":"the","metadata":{"1":-Infinity}}', "Infinity"),
    "a number past all floats": ("/v1/responses", b'{"input":"a","metadata":{"1":1e999}}', "large"),
    "half a pair in a name": ("/generate", b'{"text":"the","rid":"\\ud800"}', "surrogate"),
    "half a pair in a key": ("/v1/responses", b'{"input":"a","metadata":{"\\uDfff":1}}', "surrog"),
    "half a pair as bytes": ("/generate", b'{"text":"the","rid":"\xed\xa0\x80"}', "UTF-8"),
    "another encoding": ("/generate", '{"text":"the"}'.encode("utf-16"), "UTF-8"),
    "half a pair as a stop": ("/v1/completions", b'{"prompt":"a","stop":"\\ud800"}', "surrogate"),
}


@pytest.mark.parametrize("name", BACK)
def test_a_value_that_json_cannot_send_back_is_refused_before_any_step(server, name):
    path, body, reason = BACK[name]
    assert reason in assert_is_error(post_raw(server, path, body))["message"]


def test_whole_surrogate_pairs_and_escaped_backslashes_are_text(server):
    for rid in ("\\ud83d\\ude00", "\\\\ud800"):
        body = f'{{"text":"the","rid":"{rid}","sampling_params":{{"max_new_tokens":1}}}}'
        response = post_raw(server, "/generate", body.encode())
        assert response.json()["meta_info"]["id"] == json.loads(f'"{rid}"')
