"""Structured answers over HTTP: they follow the grammar, and equal the offline answers."""

import json
import re

import httpx
import openai
import pytest

from outrider import SamplingParams
from outrider.structured.grammar_cache import MAX_PENDING

pytest.importorskip("xgrammar")

MESSAGES = [{"role": "user", "content": "tell me the tale"}]
ASKED = {"model": "tiny", "messages": MESSAGES, "max_tokens": 60, "seed": 5, "temperature": 0.8}
SCHEMA = {"enum": [12, 345, 7]}  # JSON that the tiny vocabulary can spell
FORMAT = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA}}


@pytest.mark.slow  # it starts a compiler process for the model offline, too
def test_a_schema_shapes_a_chat_and_drafts_change_nothing(client, llm):
    answer = client.chat.completions.create(**ASKED, response_format=FORMAT)
    text = answer.choices[0].message.content
    assert json.loads(text) in SCHEMA["enum"]
    params = SamplingParams(max_tokens=60, seed=5, temperature=0.8, structured={"json": SCHEMA})
    assert llm.chat(MESSAGES, params, use_tqdm=False)[0].outputs[0].text == text


def test_a_streamed_answer_follows_the_grammar_too(client):
    chunks = client.chat.completions.create(**ASKED, response_format=FORMAT, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert json.loads(text) in SCHEMA["enum"]


def test_a_response_takes_the_schema_beside_the_type(client):
    form = {"format": {"type": "json_schema", "name": "verdict", "schema": SCHEMA}}
    answer = client.responses.create(
        model="tiny", input="tell me", max_output_tokens=60, text=form, extra_body={"seed": 5}
    )
    assert json.loads(answer.output_text) in SCHEMA["enum"]


def test_a_completion_takes_vllms_structured_outputs(client):
    answer = client.completions.create(
        model="tiny",
        prompt="tell",
        max_tokens=20,
        seed=5,
        extra_body={"structured_outputs": {"regex": "[ab]{3}"}},
    )
    assert re.fullmatch("[ab]{3}", answer.choices[0].text)


def test_one_request_may_have_more_grammars_than_may_wait(server):
    lengths = range(1, MAX_PENDING + 9)
    params = [{"regex": f"[ab]{{{n}}}", "max_new_tokens": 60} for n in lengths]
    body = {"input_ids": [[5, 6]] * len(lengths), "sampling_params": params}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    for length, each in zip(lengths, answer.json(), strict=True):
        assert re.fullmatch(f"[ab]{{{length}}}", each["text"])


@pytest.mark.parametrize(
    "form",
    [
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}},
    ],
    ids=lambda form: str(form)[:40],
)
def test_a_grammar_that_makes_no_sense_is_refused_before_any_work(client, form):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**ASKED, response_format=form)
