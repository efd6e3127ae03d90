"""`/v1/embeddings` as OpenAI's client reads it."""

import base64

import numpy as np
import pytest

TEXTS = ["once upon a time", "the end"]


@pytest.fixture(scope="module")
def expected(llm):
    return [each.outputs.embedding for each in llm.embed(TEXTS, use_tqdm=False)]


def test_the_client_gets_the_vectors_of_the_offline_model(client, expected):
    for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model="tiny", input=TEXTS, **more)
        assert [item.index for item in answer.data] == [0, 1]
        for item, right in zip(answer.data, expected, strict=True):
            given = item.embedding
            if isinstance(given, str):  # the client leaves base64 alone if it was asked for
                given = np.frombuffer(base64.b64decode(given), dtype="<f4")
            assert list(given) == pytest.approx(right, abs=1e-5)
        assert answer.usage.total_tokens == answer.usage.prompt_tokens > 0


def test_one_text_or_token_ids_may_be_given(client, llm, expected):
    one = client.embeddings.create(model="tiny", input=TEXTS[0])
    ids = llm.get_tokenizer().encode(TEXTS[0], add_special=True)
    for given in (list(ids), [list(ids)]):
        again = client.embeddings.create(model="tiny", input=given)
        assert again.data[0].embedding == one.data[0].embedding
    assert np.linalg.norm(one.data[0].embedding) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "empty"),
        ({"input": "a", "dimensions": 8}, "matryoshka"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "temperature": 1}, "temperature"),
        ({"input": [5] * 9999}, "context"),
        ({"input": [[400]]}, "between 0 and"),
    ],
)
def test_what_cannot_be_embedded_is_refused_with_the_reason(server, body, reason):
    refused = server.post("/v1/embeddings", body)
    assert refused.status_code == 400
    assert reason in refused.text
