"""`trace`: the rounds of an answer over HTTP, whole and streamed."""

import json

QUESTION = {"role": "user", "content": "the cat, the dog, the cat, the dog"}
ASKED = {"messages": [QUESTION], "temperature": 0.1, "seed": 4, "max_tokens": 40}


def chunks(server, body):
    lines = server.post("/v1/chat/completions", {**body, "stream": True}).text.split("\n\n")
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data.pop() == "[DONE]"
    return [json.loads(each) for each in data]


def test_the_texts_of_every_chunks_rounds_are_its_content(server):
    rounds = []
    for chunk in chunks(server, {**ASKED, "trace": True}):
        (choice,) = chunk["choices"]
        found = choice.get("rounds", [])
        texts = [token["text"] for each in found for token in each["emitted"]]
        assert "".join(texts) == choice["delta"].get("content", "")
        rounds += found
    assert sum(len(each["emitted"]) for each in rounds) == 40
    assert any(token["depth"] == 0 for each in rounds for token in each["emitted"])
    assert any(token["depth"] == 1 for each in rounds for token in each["emitted"])


def test_an_accepted_draft_is_on_the_path_and_every_node_has_its_text(server):
    for chunk in chunks(server, {**ASKED, "trace": True}):
        for each in chunk["choices"][0].get("rounds", []):
            accepted = [token["token"] for token in each["emitted"] if token["depth"]]
            assert [each["nodes"][node]["token"] for node in each["path"][1:]] == accepted
            assert each["nodes"][0]["parent"] == -1
            assert all(node["text"] for node in each["nodes"])


def test_a_whole_answer_has_the_rounds_that_its_stream_had(server):
    answer = server.post("/v1/chat/completions", {**ASKED, "trace": True}).json()
    (choice,) = answer["choices"]
    streamed = chunks(server, {**ASKED, "trace": True})
    texts = [
        token["text"]
        for chunk in streamed
        for each in chunk["choices"][0].get("rounds", [])
        for token in each["emitted"]
    ]
    whole = [token["text"] for each in choice["rounds"] for token in each["emitted"]]
    assert "".join(whole) == choice["message"]["content"] == "".join(texts)


def test_each_of_several_answers_has_its_own_rounds(server):
    body = {**ASKED, "trace": True, "n": 2, "speculative": "off"}
    for choice in server.post("/v1/chat/completions", body).json()["choices"]:
        texts = [token["text"] for each in choice["rounds"] for token in each["emitted"]]
        assert "".join(texts) == choice["message"]["content"]
        assert all(len(each["nodes"]) == 1 for each in choice["rounds"])  # nothing was drafted


def test_a_stop_string_cuts_the_rounds_where_it_cuts_the_tokens(server):
    free = server.post("/v1/chat/completions", ASKED).json()["choices"][0]["message"]["content"]
    body = {**ASKED, "trace": True, "stop": free[10:13]}
    answer = server.post("/v1/chat/completions", body).json()
    (choice,) = answer["choices"]
    emitted = [token for each in choice["rounds"] for token in each["emitted"]]
    assert len(emitted) == answer["usage"]["completion_tokens"]
    assert "".join(token["text"] for token in emitted) == choice["message"]["content"]


def test_without_trace_there_are_no_rounds(server):
    assert all("rounds" not in chunk["choices"][0] for chunk in chunks(server, ASKED))
    (choice,) = server.post("/v1/chat/completions", ASKED).json()["choices"]
    assert "rounds" not in choice
