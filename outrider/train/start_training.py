"""From checked flags to a head on disk: answers, sequences, training, export, picture."""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outrider.config.engine_config import EngineConfig
from outrider.config.settings import resolve_settings
from outrider.errors import ConfigError
from outrider.frontend.tokenizer.tokenizer import load_tokenizer
from outrider.hub.download_bars import BarReporter
from outrider.hub.resolve_model import resolve_model
from outrider.models.eagle.head_config import HeadConfig
from outrider.models.model_config import read_config
from outrider.train.batches import BatchOrder
from outrider.train.checkpoints import TrainingCheckpoint, list_checkpoints, load_checkpoint
from outrider.train.documents import Document, count_tokens
from outrider.train.draft_vocabulary import check_draft_vocab, choose_draft_tokens, coverage
from outrider.train.export_head import export_head
from outrider.train.gather_answers import AnswerGenerator, AnswerSource, gather_answers
from outrider.train.head_design import ExportFormat, HeadDesign, design_config, head_fields
from outrider.train.packed_attention import AttentionKind
from outrider.train.packing import PackedDocuments, pack_documents
from outrider.train.plot_training import plot_run
from outrider.train.recipe import LearningRates, Recipe
from outrider.train.trainer import HeadSpec, Trainer, TrainingPlacement
from outrider.train.training_log import log_line, metrics_line
from outrider.train.training_loop import (
    Cadence,
    TrainingRun,
    TrainingSequences,
    check_same,
    free_device,
    steps_within,
)

_HELD_OUT = 50  # one conversation of this many is examined and not trained on
_MOST_HELD_OUT = 200  # documents
_SMALLEST_FLEX = 16  # head_dim that flex attention takes


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMachine:
    """Where it runs."""

    device: str
    attention: AttentionKind | None  # None: what suits the device
    is_compiled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How long and how."""

    recipe: Recipe  # steps 0: as many as the epochs take
    rates: LearningRates
    cadence: Cadence
    length: int  # of a sequence
    epochs: float
    budget_s: float  # 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """What is written at the end."""

    folder: Path
    format: ExportFormat
    dtype: str
    resume: bool


def train_eagle3(
    generator: AnswerGenerator,
    design: HeadDesign,
    source: AnswerSource,
    plan: TrainingPlan,
    machine: TrainingMachine,
    outcome: TrainingOutcome,
) -> None:
    """Everything, in order. What an earlier run left is used, and never overwritten."""
    target_folder = resolve_model(generator.model, BarReporter())
    fields = head_fields(design, target_folder)
    before = _earlier(outcome)
    target = read_config(target_folder)
    check_draft_vocab(design.draft_vocab, vocab=target.vocab_size)
    config = design_config(fields, target)
    placement = _placement(machine, config)
    outcome.folder.mkdir(parents=True, exist_ok=True)
    answers = outcome.folder / "answers.jsonl"
    documents = gather_answers(source, generator, answers, is_complete=bool(before))
    free_device(placement.device)
    ids = _choose(documents, design, target_folder)
    subject = HeadSpec(target_folder=target_folder, config=config, ids=ids)
    course, digest = _course(documents, plan)
    plan = _with_steps(plan, course, subject, placement, before)
    asked = {**asdict(plan.recipe), **asdict(plan.rates), "length": plan.length, "answers": digest}
    facts: dict[str, Any] = {"fields": fields, "target": generator.model, "run": asked}
    trainer = Trainer(subject, plan.recipe, plan.rates, placement)
    start = TrainingCheckpoint(step=0, facts=facts, memory={}, ids=ids)
    for checkpoint in before:
        check_same(checkpoint.facts["run"] | checkpoint.facts["fields"], asked | fields)
        trainer.remember(checkpoint.memory)
        start = replace(start, step=checkpoint.step)
    run = TrainingRun(trainer, course, plan.cadence, folder=outcome.folder, start=start)
    last = run.finish()
    log_line(f"held out: {metrics_line(trainer.examine(course.held_out))}")
    _hand_over(load_checkpoint(last), outcome, target_folder)


def _earlier(outcome: TrainingOutcome) -> tuple[TrainingCheckpoint, ...]:
    """The last checkpoint of a run to go on with, or nothing."""
    found = list_checkpoints(outcome.folder / "checkpoints")
    if found and not outcome.resume:
        raise ConfigError(
            f"{outcome.folder} holds a run already; go on with --resume or use another --out"
        )
    if not found and _head_folder(outcome).exists():
        raise ConfigError(f"{_head_folder(outcome)} exists already; use another --out")
    return tuple(load_checkpoint(path) for path in found[-1:])


def _head_folder(outcome: TrainingOutcome) -> Path:
    return outcome.folder / "head"


def _placement(machine: TrainingMachine, config: HeadConfig) -> TrainingPlacement:
    settings = resolve_settings(
        EngineConfig(device=machine.device),
        model_context=1,
        num_cuda=torch.cuda.device_count(),
    )
    is_cuda = settings.device != "cpu"
    usual: AttentionKind = "flex" if is_cuda and _takes_flex(config) else "dense"
    return TrainingPlacement(
        device=torch.device(settings.device),
        dtype=torch.bfloat16 if is_cuda else torch.float32,
        attention=machine.attention or usual,
        is_compiled=machine.is_compiled,
    )


def _takes_flex(config: HeadConfig) -> bool:
    return config.layer.attention.head_dim >= _SMALLEST_FLEX


def _choose(documents: Sequence[Document], design: HeadDesign, target_folder: Path) -> torch.Tensor:
    counts: Counter[int] = count_tokens(documents)
    tokenizer = load_tokenizer(target_folder)
    ids = choose_draft_tokens(
        counts,
        size=design.draft_vocab,
        vocab=read_config(target_folder).vocab_size,
        always=tokenizer.stop_ids | tokenizer.special_ids,
    )
    log_line(
        f"{len(ids)} tokens can be drafted, {coverage(counts, ids):.2%} of what the target says"
    )
    return ids


def _course(documents: Sequence[Document], plan: TrainingPlan) -> tuple[TrainingSequences, int]:
    """Sequences to train on and to examine, and a number that tells them from others."""
    held = [each for each in documents if zlib.crc32(each.id.encode()) % _HELD_OUT == 0]
    held = (held or list(documents)[-1:])[:_MOST_HELD_OUT]
    names = {each.id for each in held}
    rest = [each for each in documents if each.id not in names]
    packed = pack_documents(rest, length=plan.length, seed=plan.recipe.seed)
    order = BatchOrder(packed, size=plan.recipe.batch, seed=plan.recipe.seed)
    held_out = pack_documents(held, length=plan.length, seed=plan.recipe.seed)
    log_line(f"{_extent(packed)}; {len(held)} documents are held out")
    return TrainingSequences(order=order, held_out=held_out), zlib.crc32(packed.tokens.tobytes())


def _extent(packed: PackedDocuments) -> str:
    used = float((packed.documents >= 0).mean())
    return f"{len(packed)} sequences of {packed.tokens.shape[1]} tokens, {used:.1%} filled"


def _with_steps(
    plan: TrainingPlan,
    course: TrainingSequences,
    subject: HeadSpec,
    placement: TrainingPlacement,
    before: Sequence[TrainingCheckpoint],
) -> TrainingPlan:
    """The plan with a number of steps: as asked, by epochs, and no more than the time allows."""
    steps = plan.recipe.steps or max(1, round(plan.epochs * course.order.per_epoch))
    known = [int(checkpoint.facts["run"]["steps"]) for checkpoint in before]
    if plan.budget_s and not known:
        trial = Trainer(subject, replace(plan.recipe, steps=steps), plan.rates, placement)
        steps = min(steps, steps_within(trial, course.order, plan.budget_s))
        del trial
        free_device(placement.device)
    elif plan.budget_s:
        (steps,) = known
    return replace(plan, recipe=replace(plan.recipe, steps=steps))


def _hand_over(
    checkpoint: TrainingCheckpoint, outcome: TrainingOutcome, target_folder: Path
) -> None:
    """Export the head, and draw the run where that is possible."""
    folder = _head_folder(outcome)
    if not folder.exists():  # else the run had ended before
        num_bytes = export_head(
            checkpoint,
            folder,
            target_folder=target_folder,
            format=outcome.format,
            dtype=outcome.dtype,
        )
        log_line(f"the head is in {folder} ({num_bytes / 1e6:.1f} MB)")
    try:
        log_line(f"the run is drawn in {plot_run(outcome.folder)}")
    except ConfigError as error:
        log_line(f"note: {error}")
