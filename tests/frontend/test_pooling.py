"""Embeddings of texts are those of transformers, pooled as the folder says."""

import json

import pytest
import torch
from support.spoken import tiny_llama, write_tokenizer
from support.tiny import tiny_model

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError, RequestError
from outrider.frontend.pooling import check_dimensions
from outrider.hub.pooling_config import PoolingConfig, parse_pooler, read_pooling

TEXTS = [[3, 41, 7, 7, 19, 28, 5, 5, 30, 2, 44, 9], [5], [3, 41, 7, 7, 19, 28, 5, 5, 30, 1]]
MEAN = {"pooling_type": "MEAN", "normalize": False}


def states_of(body, tokens):
    with torch.inference_mode():
        return body(torch.tensor([tokens])).last_hidden_state[0]


def embeddings(llm, texts=TEXTS):
    outputs = llm.embed([{"prompt_token_ids": each} for each in texts], use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == texts
    return [output.outputs.embedding for output in outputs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model without an output layer, as embedding models are saved."""
    folder = tmp_path_factory.mktemp("embedding")
    tiny_llama().model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("pooler", [None, MEAN], ids=["last", "mean"])
@pytest.mark.parametrize("executor", ["eager", "tape"])
def test_both_kinds_are_those_of_transformers(folder, pooler, executor):
    chunked = {"max_num_batched_tokens": 36, "executor": executor, "block_size": 4}
    llm = LLM(folder, draft="none", device="cpu", pooler_config=pooler, **chunked)
    body = tiny_llama().model
    for _ in range(2):  # the second time from the prefix cache
        for tokens, got in zip(TEXTS, embeddings(llm), strict=True):
            states = states_of(body, tokens)
            right = states.mean(0) if pooler else torch.nn.functional.normalize(states[-1], dim=0)
            assert got == pytest.approx(right.tolist(), abs=1e-5)


def test_a_mean_beside_answers_that_take_its_pages_is_right(folder):
    tight = LLM(folder, draft="none", device="cpu", kv_tokens=64, block_size=4, pooler_config=MEAN)
    stream = tight.stream(
        {"prompt_token_ids": [9, 8, 7]},
        SamplingParams(max_tokens=40, temperature=0, ignore_eos=True),
    )
    next(stream)
    got = embeddings(tight)
    right = [states_of(tiny_llama().model, tokens).mean(0).tolist() for tokens in TEXTS]
    for one, other in zip(got, right, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert sum(len(delta.token_ids) for delta in stream) > 20


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("family", ["llama-tied", "qwen2", "qwen3", "mistral", "qwen3-moe"])
def test_bodies_of_every_family_load_without_an_output_layer(tmp_path, family):
    body = tiny_model(family).model
    body.save_pretrained(tmp_path)
    llm = LLM(tmp_path, draft="none", device="cpu", pooler_config=MEAN)
    right = states_of(body, TEXTS[0]).mean(0).tolist()
    assert embeddings(llm)[0] == pytest.approx(right, abs=1e-4)


def write_modules(folder, mode, *types):
    kinds = ["Transformer", "Pooling", *types]
    listed = [
        {"idx": at, "path": f"{at}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for at, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, mode: True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))


def test_the_files_of_sentence_transformers_decide(tmp_path):
    assert read_pooling(tmp_path) == PoolingConfig(kind="last", is_normalized=True)
    write_modules(tmp_path, "pooling_mode_mean_tokens")
    assert read_pooling(tmp_path) == PoolingConfig(kind="mean", is_normalized=False)
    write_modules(tmp_path, "pooling_mode_lasttoken", "Normalize")
    assert read_pooling(tmp_path) == PoolingConfig(kind="last", is_normalized=True)
    given = parse_pooler('{"pooling_type": "mean"}')
    assert read_pooling(tmp_path, given).kind == "mean"


@pytest.mark.parametrize("case", [("pooling_mode_cls_token",), ("pooling_mode_lasttoken", "Dense")])
def test_pooling_of_other_kinds_is_refused_when_it_is_used(tmp_path, folder, case):
    write_modules(tmp_path, *case)
    assert read_pooling(tmp_path).problem
    assert not read_pooling(tmp_path, {"pooling_type": "LAST"}).problem
    (tmp_path / "modules.json").write_text("{")
    assert "damaged" in read_pooling(tmp_path).problem


@pytest.mark.parametrize("text", ["[]", "{", '{"pooling_type": "CLS"}', '{"dimensions": 3}'])
def test_a_pooler_config_that_cannot_work_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="--pooler-config"):
        read_pooling(tmp_path, parse_pooler(text))


def test_dimensions_are_for_models_that_were_trained_for_them(tmp_path):
    with pytest.raises(RequestError, match="matryoshka"):
        check_dimensions(8, read_pooling(tmp_path), 32)
    assert check_dimensions(32, read_pooling(tmp_path), 32) == 32
    (tmp_path / "config.json").write_text(json.dumps({"matryoshka_dimensions": [8, 16]}))
    assert check_dimensions(8, read_pooling(tmp_path), 32) == 8
    with pytest.raises(RequestError, match="8, 16"):
        check_dimensions(9, read_pooling(tmp_path), 32)
