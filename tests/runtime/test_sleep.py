"""An engine that slept answers as before, at every level and with every drafter."""

import weakref
from pathlib import Path

import pytest
import torch
from support.heads import write_head
from support.modules import write_mimo
from support.tiny import save_tiny

from outrider import LLM, SamplingParams
from outrider.errors import CapacityError, RequestError
from outrider.models.model_config import read_config
from outrider.runtime.loaded_weights import LoadedWeights

PARAMS = [
    SamplingParams(max_tokens=16, temperature=0, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=0.9, seed=5, ignore_eos=True),
]
PROMPTS = [{"prompt_token_ids": [3, 4, 5, 3, 4, 5, 3]}, {"prompt_token_ids": list(range(3, 40))}]


def load(root: Path, drafter: str, **arguments) -> LLM:
    """A tiny target in `root` with a drafter of this kind."""
    folder, draft = root / "target", drafter
    if drafter == "mtp":
        folder.mkdir()
        write_mimo(folder)
    else:
        save_tiny("llama", folder)
    if drafter == "model":
        save_tiny("llama", root / "draft", disturbance=0.02)
        draft = str(root / "draft")
    elif drafter.startswith("eagle"):
        draft = str(write_head(root / "draft", read_config(folder), algorithm=drafter))
    return LLM(
        folder,
        draft=draft,
        adaptive=False,
        dtype="float32",
        kv_tokens=256,
        device="cpu",
        **arguments,
    )


def answers(llm: LLM) -> list[tuple[int, ...]]:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("level", [2, 1])
@pytest.mark.parametrize("drafter", ["none", "ngram", "model", "eagle", "eagle3", "mtp"])
def test_answers_are_the_same_before_and_after(tmp_path, drafter, level):
    llm = load(tmp_path, drafter)
    before = answers(llm)
    llm.sleep(level)
    assert llm.is_sleeping()
    llm.wake_up()
    assert not llm.is_sleeping()
    assert answers(llm) == before


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["tape", "eager"])
def test_every_executor_can_sleep(tmp_path, executor):
    llm = load(tmp_path, "ngram", executor=executor, depth=1)
    before = answers(llm)
    llm.sleep(2)
    llm.wake_up()
    assert answers(llm) == before


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_drops_the_cache_and_level_2_the_weights(tmp_path, level):
    llm = load(tmp_path, "model")
    answers(llm)
    program = llm._engine._runner._program
    pool, model = weakref.ref(program.state.kv), weakref.ref(program._model)
    del program
    llm.sleep(level)
    assert pool() is None
    assert (model() is None) == (level == 2)


def test_a_cached_prefix_is_forgotten(tmp_path):
    llm = load(tmp_path, "none")
    answers(llm)
    assert llm.generate(PROMPTS[1], PARAMS[0], use_tqdm=False)[0].usage.cached_tokens > 0
    llm.sleep()
    llm.wake_up()
    assert llm.generate(PROMPTS[1], PARAMS[0], use_tqdm=False)[0].usage.cached_tokens == 0


def test_a_sleeping_model_says_how_to_wake_it(tmp_path):
    llm = load(tmp_path, "none")
    before = answers(llm)
    llm.sleep(level=0)
    with pytest.raises(CapacityError, match="wake_up"):
        answers(llm)
    llm.wake_up()
    assert answers(llm) == before


def test_running_requests_end_with_what_they_have(tmp_path):
    llm = load(tmp_path, "ngram")
    stream = llm.stream(PROMPTS[0], PARAMS[0])
    first = next(stream)
    llm.sleep()
    list(stream)
    assert stream.output.outputs[0].finish_reason == "abort"
    assert list(stream.output.outputs[0].token_ids[: len(first.token_ids)]) == list(first.token_ids)
    llm.wake_up()
    assert len(answers(llm)[0]) == 16


@pytest.mark.slow
def test_weights_and_cache_come_back_one_by_one_in_any_order(tmp_path):
    llm = load(tmp_path, "none")
    before = answers(llm)
    for order in (["weights", "kv_cache"], ["kv_cache", "weights"]):
        llm.sleep(2)
        for tag in order:
            assert llm.is_sleeping()
            llm.wake_up([tag])
        assert not llm.is_sleeping()
        assert answers(llm) == before


@pytest.mark.slow
def test_a_sleeping_engine_can_sleep_deeper_and_waking_twice_changes_nothing(tmp_path):
    llm = load(tmp_path, "none")
    before = answers(llm)
    steps = llm._engine.stats.work.counts.steps
    for level in (0, 1, 2, 1):
        llm.sleep(level)
    llm.wake_up()
    llm.wake_up()
    assert answers(llm) == before
    assert llm._engine.stats.work.counts.steps == 2 * steps  # counted on after the sleep


def test_an_unknown_level_or_tag_is_refused_and_requests_go_on(tmp_path):
    llm = load(tmp_path, "none")
    stream = llm.stream(PROMPTS[0], PARAMS[0])
    with pytest.raises(RequestError, match="0, 1 or 2"):
        llm.sleep(3)
    with pytest.raises(RequestError, match="tags are weights, kv_cache"):
        llm.wake_up(["weight"])
    assert len([token for delta in stream for token in delta.token_ids]) == 16


def test_weights_come_back_with_their_bits_and_views_stay_views():
    weights = LoadedWeights()
    with weights.noting(torch.device("cpu")):
        matrix = torch.randn(64, 32)
        rows = matrix[8:24].t()  # as of a projection that is a part of a fused one
        torch.ones(1000)  # not kept
        norm = torch.rand(7, dtype=torch.bfloat16)
    assert weights.num_bytes == 64 * 32 * 4 + 7 * 2
    kept = matrix.clone(), norm.clone()
    for _ in range(2):
        weights.offload()
        assert weights.num_bytes == 0
        assert matrix.untyped_storage().nbytes() == 0
        weights.restore()
        assert torch.equal(matrix, kept[0])
        assert torch.equal(norm, kept[1])
    matrix[8, 3] = 5.0
    assert rows[3, 0] == 5.0
