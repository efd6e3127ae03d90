"""An engine that changes its draft head answers as before, and drafts with the new head."""

from pathlib import Path

import pytest
from support.heads import write_head
from support.tiny import save_tiny

from outrider import LLM, SamplingParams
from outrider.errors import CapacityError, ConfigError
from outrider.models.model_config import read_config

PROMPTS = [{"prompt_token_ids": [3, 4, 5, 3, 4, 5, 3]}, {"prompt_token_ids": list(range(3, 40))}]
PARAMS = [
    SamplingParams(max_tokens=16, temperature=0, ignore_eos=True),
    SamplingParams(max_tokens=16, temperature=0.9, seed=5, ignore_eos=True),
]


@pytest.fixture
def root(tmp_path) -> Path:
    save_tiny("llama", tmp_path / "target")
    for seed in (0, 1):
        write_head(tmp_path / f"head-{seed}", read_config(tmp_path / "target"), seed=seed)
    return tmp_path


def load(root: Path, head: str) -> LLM:
    return LLM(
        root / "target",
        draft=str(root / head),
        adaptive=False,
        dtype="float32",
        kv_tokens=256,
        device="cpu",
    )


def run(llm: LLM) -> tuple[list[tuple[int, ...]], list[list[int]]]:
    """The answers, and which drafts were accepted."""
    outputs = [each.outputs[0] for each in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    kept = [each.acceptance.kept_per_position for each in outputs]
    return [tuple(each.token_ids) for each in outputs], kept


def test_answers_stay_and_drafts_are_those_of_the_new_head(root):
    reference = run(load(root, "head-1"))
    llm = load(root, "head-0")
    answers, kept = run(llm)
    assert kept != reference[1]
    llm._engine.use_head(str(root / "head-1"))
    num_hits = llm._engine.stats.prefix.hit_tokens
    assert run(llm) == reference
    assert llm._engine.stats.prefix.hit_tokens == num_hits  # pages held what the old head computed
    assert reference[0] == answers
    llm.sleep(2)  # reads the weights of the head in use again
    llm.wake_up()
    assert run(llm) == reference


def test_an_engine_whose_head_failed_drafts_with_the_next_one(root, monkeypatch):
    reference = run(load(root, "head-1"))
    llm = load(root, "head-0")

    def fail(*_):
        raise RuntimeError("the head broke")

    monkeypatch.setattr(llm._engine._runner._program.drafter._drafter, "propose", fail)
    answers, kept = run(llm)
    assert answers == reference[0]
    assert kept == [[], []]
    llm._engine.use_head(str(root / "head-1"))
    assert run(llm) == reference
    assert llm._engine.num_drafter_failures == 1


def test_a_head_that_cannot_be_loaded_changes_nothing(root):
    llm = load(root, "head-0")
    before = run(llm)
    (root / "head-1" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="head-1"):
        llm._engine.use_head(str(root / "head-1"))
    llm._engine.flush()
    assert run(llm) == before


def test_a_drafter_of_another_kind_is_refused(root):
    """A whole model reads one token more: the scheduler would reserve too few pages."""
    llm = load(root, "head-0")
    before = run(llm)
    with pytest.raises(ConfigError, match="drafts in another way"):
        llm._engine.use_head(str(root / "target"))
    llm._engine.flush()
    assert run(llm) == before


def test_an_engine_that_sleeps_does_not_change_its_head(root):
    llm = load(root, "head-0")
    llm.sleep()
    with pytest.raises(CapacityError, match="wake it up"):
        llm._engine.use_head(str(root / "head-1"))
