"""Request fields of vLLM, SGLang and OpenAI beyond the usual ones, over the openai client."""

import httpx
import openai
import pytest

from outrider.server.protocol.chat_protocol import ChatRequest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "tell the tale"}], "seed": 3}
TEXT = {"model": "tiny", "prompt": "the tale of", "max_tokens": 12, "seed": 3}


def chat(client, **body):
    known = {name: body.pop(name) for name in ("max_tokens", "stream", "n") if name in body}
    messages = body.pop("messages", CHAT["messages"])
    return client.chat.completions.create(
        **CHAT | {"messages": messages}, **{"max_tokens": 12} | known, extra_body=body
    )


def text_of(answer):
    return answer.choices[0].message.content


def test_allowed_tokens_are_the_only_ones_with_and_without_drafts(client):
    for speculative in ({}, {"speculative": "off"}):
        answer = chat(client, allowed_token_ids=[5, 6, 7], return_token_ids=True, **speculative)
        assert set(answer.choices[0].token_ids) <= {5, 6, 7}
    assert (
        len({text_of(chat(client, allowed_token_ids=[5, 6], speculative=s)) for s in (None, "off")})
        == 1
    )


def test_a_bad_word_that_no_token_spells_changes_nothing(client):
    plain = text_of(chat(client, temperature=0, max_tokens=8))
    assert text_of(chat(client, temperature=0, max_tokens=8, bad_words=[":"])) == plain


def test_bad_words_are_not_in_the_answer(client):
    free = text_of(chat(client, temperature=0, max_tokens=40))
    letters = "abcdfgijklmnopqrsuvwxyz"  # each is one token, whatever stands beside it
    place = next(at for at in range(38) if free[at] in letters and free[at + 1] in letters)
    word = free[place : place + 2]
    for speculative in (None, "off"):
        answer = text_of(
            chat(client, temperature=0, max_tokens=40, bad_words=[word], speculative=speculative)
        )
        assert word not in answer
        assert answer.startswith(free[: place + 1])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"allowed_token_ids": []}, "allows no token"),
        ({"allowed_token_ids": [999_999]}, "outside the vocabulary"),
        ({"allowed_token_ids": [5], "bad_words": ["a"]}, "exclude each other"),
        ({"allowed_token_ids": [0], "min_tokens": 2}, "stop ids only"),
        ({"bad_words": [""]}, "not blank"),
        ({"bad_words": ["a" * 30]}, "at most 16"),
        ({"bad_words": ["a"], "guided_regex": "a"}, "cannot be combined"),
        ({"guided_regex": "a", "regex": "b"}, "exclude each other"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"prediction": {"type": "content"}}, "prediction"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "exclude each other"),
        ({"prompt_logprobs": 1, "stream": True}, "stream"),
        ({"cache_salt": "a" * 2000}, "cache_salt"),
        ({"logits_processors": ["mine"]}, "not supported"),
    ],
)
def test_fields_that_do_not_fit_are_refused(client, fields, reason):
    with pytest.raises(openai.BadRequestError, match=reason):
        list(chat(client, **fields))


def test_a_prediction_changes_no_token_and_is_accepted(client):
    plain = chat(client, temperature=0, max_tokens=60, return_metrics=True)
    predicted = client.chat.completions.create(
        **CHAT,
        temperature=0,
        max_tokens=60,
        extra_body={"return_metrics": True},
        prediction={"type": "content", "content": [{"type": "text", "text": text_of(plain)}]},
    )
    assert text_of(predicted) == text_of(plain)
    steps = [each.metrics["speculative_decoding"]["num_spec_steps"] for each in (plain, predicted)]
    assert steps[1] < steps[0]


def test_the_final_message_can_be_continued(client, server):
    messages = [*CHAT["messages"], {"role": "assistant", "content": "once upon a "}]
    answer = chat(client, messages=messages, continue_final_message=True, return_token_ids=True)
    shown = server.post("/detokenize", {"tokens": answer.prompt_token_ids}).json()["prompt"]
    assert shown.endswith("once upon a ")


def test_token_ids_and_prompt_logprobs_are_reported(client, server):
    answer = chat(client, return_token_ids=True, prompt_logprobs=2)
    assert len(answer.choices[0].token_ids) == answer.usage.completion_tokens
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens == len(answer.prompt_logprobs)
    assert answer.prompt_logprobs[0] is None
    for token, at in zip(answer.prompt_token_ids[1:], answer.prompt_logprobs[1:], strict=True):
        assert at[str(token)]["logprob"] <= 0
        assert {"rank", "decoded_token"} < set(at[str(token)])
    chunks = list(chat(client, return_token_ids=True, stream=True))
    assert chunks[0].prompt_token_ids == answer.prompt_token_ids
    streamed = [id_ for chunk in chunks[1:] for id_ in chunk.choices[0].token_ids]
    assert streamed == answer.choices[0].token_ids


def test_a_completion_reports_its_prompt(server):
    body = {**TEXT, "prompt_logprobs": 1, "return_token_ids": True}
    (choice,) = server.post("/v1/completions", body).json()["choices"]
    assert len(choice["prompt_token_ids"]) == len(choice["prompt_logprobs"])
    assert len(choice["token_ids"]) == 12


def test_a_prompt_is_truncated_from_its_begin(server):
    body = {**TEXT, "truncate_prompt_tokens": 3, "return_token_ids": True}
    (choice,) = server.post("/v1/completions", body).json()["choices"]
    whole = server.post("/tokenize", {"prompt": TEXT["prompt"]}).json()["tokens"]
    assert choice["prompt_token_ids"] == whole[-3:]
    long = {**TEXT, "prompt": [5, 6, 7] * 2000}
    assert server.post("/v1/completions", long).status_code == 400
    fitting = server.post("/v1/completions", {**long, "truncate_prompt_tokens": -1}).json()
    assert fitting["usage"]["prompt_tokens"] == 4096 - 12


def test_requests_of_other_salts_share_no_prefix(server):
    body = {**TEXT, "prompt": "one two three four five six seven " * 8, "max_tokens": 1}
    cached = []
    for salt in ("a", "a", "b", "b", None):
        answer = server.post("/v1/completions", {**body, "cache_salt": salt}).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert [bool(each) for each in cached] == [False, True, False, True, False]


@pytest.mark.parametrize("name", ["request_id", "rid"])
def test_the_name_of_a_request_is_in_its_answer(server, name):
    answer = server.post("/v1/completions", {**TEXT, name: "mine-7"}).json()
    assert answer["id"] == "cmpl-mine-7"


def test_the_best_of_several_answers_is_the_likeliest(server):
    body = {**TEXT, "logprobs": 0, "temperature": 1.5, "ignore_eos": True}
    all_of = server.post("/v1/completions", {**body, "n": 5}).json()["choices"]
    best = server.post("/v1/completions", {**body, "best_of": 5, "n": 2}).json()
    means = {c["text"]: sum(c["logprobs"]["token_logprobs"]) / 12 for c in all_of}
    likeliest = sorted(means, key=means.get, reverse=True)[:2]
    assert [choice["text"] for choice in best["choices"]] == likeliest
    assert best["usage"]["completion_tokens"] == 60
    assert server.post("/v1/completions", {**body, "best_of": 2, "n": 3}).status_code == 400


FORMS = {
    "guided_regex": "ab?c",
    "regex": "ab?c",
    "guided_choice": ["ac", "abc"],
    "guided_grammar": 'root ::= "a" "b"? "c"',
    "ebnf": 'root ::= "a" "b"? "c"',
}


@pytest.mark.parametrize("name", FORMS)
def test_older_names_of_structured_output_work(client, name):
    pytest.importorskip("xgrammar")
    answer = text_of(chat(client, **{name: FORMS[name]}, max_tokens=60))
    assert answer in ("ac", "abc")


def test_schemas_have_older_names_too():
    for name in ("guided_json", "json_schema"):
        body = ChatRequest(messages=CHAT["messages"], **{name: '{"type": "array"}'})
        assert body.params().grammar_spec.text == '{"type": "array"}'


def test_stop_strings_stay_with_the_name_of_sglang(server):
    whole = server.post("/v1/completions", TEXT).json()["choices"][0]["text"]
    body = {**TEXT, "stop": whole[4], "no_stop_trim": True}
    kept = server.post("/v1/completions", body).json()["choices"][0]["text"]
    assert kept == whole[: whole.index(whole[4]) + 1]


def test_an_unknown_option_of_structured_outputs_is_refused_by_name(server):
    for options in ({"regex": "a", "disable_fallback": True}, {"regex": "a", "disabled": 1}):
        response = httpx.post(
            f"{server.url}/v1/completions", json={**TEXT, "structured_outputs": options}
        )
        assert response.status_code == 400
    fine = {**TEXT, "structured_outputs": {"regex": "a", "disable_fallback": False, "json": None}}
    answer = server.post("/v1/completions", fine)
    assert answer.json()["choices"][0]["text"] == "a", answer.text
