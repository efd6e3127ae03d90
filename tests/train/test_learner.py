"""Learning without a server: what is kept, what is refused, and that a head gets better."""

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from support.block_heads import BlockVariant, write_block_head
from support.heads import DIALECTS, Variant, write_head
from support.medusa_models import MedusaVariant, write_medusa
from support.peagle_heads import write_peagle
from support.tiny import save_tiny

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError
from outrider.hub.learn_folder import LearnFolder
from outrider.models.model_config import read_config
from outrider.server.learner_messages import encode_learner
from outrider.server.learning import cut_text
from outrider.train import learner
from outrider.train.checkpoints import TrainingCheckpoint
from outrider.train.export_head import export_head
from outrider.train.learn_buffer import LearnBuffer
from outrider.train.recipe import LearningRates
from outrider.train.trainable_head import open_trainable
from outrider.train.training_device import TrainingDevice


def nothing() -> None:
    """Training waits for no request."""


def test_the_buffer_never_holds_more_than_its_bytes():
    buffer, draw = LearnBuffer(4000, length=32), random.Random(0)
    for _ in range(200):
        size = draw.randint(3, 60)
        buffer.add(tuple(range(size)), draw.randint(1, size), 0.0)
        assert buffer.num_bytes <= 4000
    assert 0 < len(buffer) < 20
    newest = buffer.num_added - 1
    kept = {int(each.id) for each in buffer.sample(10**6, seed=0) + buffer.held_back(10**6)}
    assert kept == set(range(newest - len(buffer) + 1, newest + 1))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("num_prompt", [5, 500, 9_000])
def test_a_server_sends_no_more_of_a_text_than_a_learner_keeps(device, num_prompt):
    where = TrainingDevice(
        device=torch.device(device), dtype=torch.float32, attention="dense", is_compiled=False
    )
    prompt, answer = tuple(range(num_prompt)), tuple(range(20_000, 29_000))
    sent = cut_text(prompt, answer, 0.5)
    assert len(encode_learner(sent)) < 12_000
    buffers = [LearnBuffer(10**6, length=where.short_step.length) for _ in range(2)]
    buffers[0].add(prompt + answer, num_prompt, 0.5)
    buffers[1].add(sent.tokens, sent.num_prompt, sent.temperature)
    kept = [each.sample(10**6, seed=0) for each in buffers]
    assert kept[0] == kept[1] != []


def test_a_text_longer_than_the_buffer_or_without_an_answer_is_left_out():
    buffer = LearnBuffer(300, length=32)
    buffer.add(tuple(range(30)), 5, 0.0)  # 120 bytes and those of the entry
    buffer.add((1, 2, 3), 2, 0.0)  # one answer token: nothing to predict
    assert (len(buffer), buffer.num_bytes) == (0, 0)


def test_held_back_texts_are_never_trained_on():
    buffer = LearnBuffer(10**6, length=32)
    for _ in range(40):
        buffer.add(tuple(range(12)), 4, 0.0)
    held = {each.id for each in buffer.held_back(10**6)}
    trained = {each.id for each in buffer.sample(10**6, seed=3)}
    assert held == {"3", "11", "19", "27", "35"}
    assert not held & trained
    assert len(held | trained) == 40


def test_a_long_prompt_leaves_room_for_its_answer():
    buffer = LearnBuffer(10**6, length=8)
    buffer.add(tuple(range(100, 130)), 20, 0.5)
    (document,) = buffer.sample(100, seed=0)
    assert document.tokens == tuple(range(116, 124))  # half prompt, half answer
    assert document.answers == ((4, 8),)
    assert document.temperature == 0.5


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("learner") / "target"
    save_tiny("llama", folder)
    return folder


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"algorithm": "eagle"}, "EAGLE 1 or 2 heads have no training code"),
        ({"attention_bias": True}, "biases"),
        ({"norm_before_fc": True}, "norm_before_fc"),
        ({"head_norm": True}, "normalises queries and keys"),
        ({"num_layers": 2}, "2 layers"),
        ({"hidden": 16}, "16 wide and the target 32"),
    ],
)
def test_a_head_that_training_would_change_is_refused_with_the_reason(
    target, tmp_path, flags, reason
):
    head = write_head(tmp_path / "head", read_config(target), **flags)
    with pytest.raises(ConfigError, match=f"cannot be trained on: .*{reason}"):
        open_trainable(head, target)


def test_a_whole_draft_model_is_refused(target):
    with pytest.raises(ConfigError, match="whole model, and only draft heads"):
        open_trainable(target, target)


def test_a_head_with_its_own_embedding_is_refused(target, tmp_path):
    head = write_head(tmp_path / "head", read_config(target), own_embedding=True)
    folder = LearnFolder(path=tmp_path / "learned", start=head)
    with pytest.raises(ConfigError, match="its own embed_tokens"):
        learner.Learner(folder, target, device="cpu", buffer_bytes=10**6)


@pytest.mark.parametrize("dialect", DIALECTS["eagle3"])
def test_a_version_is_the_same_head_in_every_dialect(target, tmp_path, dialect):
    """Its config.json is that of the first head, whatever project wrote it."""
    flags = {"fc_norm": True, "norm_output": True, "norm_before_residual": True}
    start = write_head(tmp_path / "head", read_config(target), dialect=dialect, **flags)
    head = open_trainable(start, target)
    version = TrainingCheckpoint(
        step=1,
        facts={"fields": head.fields},
        state_dict=head.state_dict(head.tensors),
        ids=head.spec.ids,
    )
    written = tmp_path / "version"
    export_head(version, written, target_folder=target, format="eagle3", dtype=head.dtype)
    again = open_trainable(written, target)
    assert again.spec.config == head.spec.config
    assert torch.equal(again.spec.ids, head.spec.ids)
    assert again.tensors.keys() == head.tensors.keys()
    assert all(torch.equal(again.tensors[name], each) for name, each in head.tensors.items())


def _write_peagle(folder: Path, target: Path) -> None:
    write_peagle(folder, read_config(target), Variant())


def _write_block(folder: Path, target: Path, **flags) -> None:
    write_block_head(folder, read_config(target), BlockVariant(has_mask_vector=True, **flags))


KINDS = {
    "peagle": _write_peagle,
    "dflash": _write_block,
    "dspark": partial(
        _write_block, is_next=True, markov_rank=6, has_confidence=True, reads_token=True
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_draft_blocks_learn_too(target, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(learner, "_MOST_STRETCHES", 1)
    monkeypatch.setattr(learner, "_MIN_GAIN", -9.0)  # writes a version, whatever it gains
    KINDS[kind](tmp_path / "head", target)
    folder = LearnFolder(path=tmp_path / "learned", start=tmp_path / "head")
    learning = learner.Learner(folder, target, device="cpu", buffer_bytes=10**6)
    learning.use(0)
    for number in range(16):
        tokens = tuple((3 + 5 * number + 7 * step) % 60 for step in range(40))
        learning.buffer.add(tokens, 6, 0.0)
    assert learning.has_work
    result = learning.run_round(nothing, nothing)
    assert result.after.loss < result.before.loss
    assert result.version == 1
    learning.use(1)
    before, after = (open_trainable(folder.head(version), target) for version in (0, 1))
    assert after.spec.config == before.spec.config
    assert after.tensors.keys() == before.tensors.keys()
    load = partial(LLM, target, device="cpu", kv_tokens=256)
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    drafted, plain = (
        load(draft=draft).generate({"prompt_token_ids": [3, 4, 5]}, params, use_tqdm=False)
        for draft in (str(folder.head(1)), "none")
    )
    assert drafted[0].outputs[0].token_ids == plain[0].outputs[0].token_ids


def test_medusa_heads_are_refused_by_name(target, tmp_path):
    write_medusa(tmp_path / "head", read_config(target), MedusaVariant())
    with pytest.raises(ConfigError, match="cannot be trained on: Medusa heads have no training"):
        open_trainable(tmp_path / "head", target)


@pytest.fixture(scope="module")
def spoken(target_folder) -> list[tuple[tuple[int, ...], int]]:
    """Greedy answers of the target, with the length of their prompts."""
    draw = random.Random(2)
    prompts = [draw.choices(range(3, 67), k=draw.randint(2, 6)) for _ in range(24)]
    llm = LLM(target_folder, draft="none", device="cpu", dtype="float32")
    sampling = SamplingParams(temperature=0.0, max_tokens=40, detokenize=False, ignore_eos=True)
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    return [
        ((*prompt, *output.outputs[0].token_ids), len(prompt))
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def begin_learning(target_folder, spoken, head: Path, versions: Path) -> learner.Learner:
    folder = LearnFolder(path=versions, start=head)
    learning = learner.Learner(folder, target_folder, device="cpu", buffer_bytes=10**6)
    learning.use(0)
    for tokens, num_prompt in spoken:
        learning.buffer.add(tokens, num_prompt, 0.0)
    return learning


@pytest.fixture(scope="module")
def learned(target_folder, spoken, tmp_path_factory) -> tuple[Path, learner.RoundResult]:
    """A folder with a head and what a round of training made of it."""
    root = tmp_path_factory.mktemp("learned")
    write_head(root / "head", read_config(target_folder), dialect="sglang")
    learning = begin_learning(target_folder, spoken, root / "head", root / "versions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner, "_rates", lambda head: replace(RATES, peak=5e-3))
        patch.setattr(learner, "_USUAL_STRETCHES", 2)
        learning = begin_learning(target_folder, spoken, root / "head", root / "versions")
        return root, learning.run_round(nothing, nothing)


RATES = LearningRates(peak=0.0, warmup=0.1, floor=0.1, clip=1.0, scores=0.1, scores_frozen=0.0)


def acceptance_of(target_folder, spoken, head: Path) -> float:
    """Tokens per round of chains through the engine, on the texts that are held back."""
    held = [text for number, text in enumerate(spoken) if number % 8 == 3]
    prompts = [list(tokens[:num_prompt]) for tokens, num_prompt in held]
    chain = {"draft": head, "steps": 5, "topk": 1, "adaptive": False, "draft_dtype": "target"}
    llm = LLM(target_folder, device="cpu", dtype="float32", check_draft=False, **chain)
    sampling = SamplingParams(temperature=0.0, max_tokens=40, detokenize=False, ignore_eos=True)
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    found = [each.outputs[0].acceptance for each in outputs]
    return 1 + sum(each.kept for each in found) / sum(each.rounds for each in found)


@pytest.mark.slow
def test_a_head_that_drafts_better_on_texts_held_back_becomes_a_version(
    learned, target_folder, spoken
):
    root, result = learned
    assert result.version == 1
    assert result.after.acceptance >= result.before.acceptance + 0.02
    version = root / "versions" / "version-0001" / "head"
    before, after = (
        acceptance_of(target_folder, spoken, each) for each in (root / "head", version)
    )
    assert after > before + 0.1  # what is drafted with is what was measured


@pytest.mark.slow
@pytest.mark.parametrize(
    "peak",
    [0.3, 0.0, 1e30],
    ids=["worse", "the same", "not finite"],
)
def test_a_head_that_does_not_draft_better_is_dropped(
    learned, target_folder, spoken, tmp_path, monkeypatch, peak
):
    """Training goes on from a head that drafts well, by steps that are much too long."""
    root, _ = learned
    monkeypatch.setattr(learner, "_rates", lambda head: replace(RATES, peak=peak))
    head = root / "versions" / "version-0001" / "head"
    learning = begin_learning(target_folder, spoken, head, tmp_path / "versions")
    assert learning.has_work
    result = learning.run_round(nothing, nothing)
    assert result.version == 0
    assert not list(tmp_path.glob("versions/version-*"))
    gain = result.after.acceptance - result.before.acceptance
    assert gain < -0.2 if peak == 0.3 else not gain > 0
    assert not learning.has_work  # the same texts would give the same
    for tokens, num_prompt in spoken[:8]:
        learning.buffer.add(tokens, num_prompt, 0.0)
    assert learning.has_work
    # The next round begins with the head in use, not with the one that was dropped.
    monkeypatch.setattr(learner, "_MOST_STRETCHES", 1)
    assert learning.run_round(nothing, nothing).before.loss == pytest.approx(
        result.before.loss, rel=0.2
    )
