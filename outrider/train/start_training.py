"""A whole run: answers, packed sequences, training, export and plot."""

import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

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
from outrider.train.head_design import (
    BlockDesign,
    ExportFormat,
    HeadDesign,
    block_fields,
    design_config,
    head_fields,
)
from outrider.train.initial_head import InitialHead
from outrider.train.packing import PackedDocuments, pack_documents
from outrider.train.plot_training import plot_run
from outrider.train.recipe import LearningRates, Recipe
from outrider.train.state_cache import StateCache, make_state_cache
from outrider.train.trainer import HeadSpec, Trainer
from outrider.train.training_device import (
    RequestedDevice,
    TrainingDevice,
    choose_training_device,
)
from outrider.train.training_log import log_line, metrics_line
from outrider.train.training_loop import (
    Cadence,
    TimeLimit,
    TrainingRun,
    TrainingSequences,
    check_same_run,
    steps_within,
)

_HELD_OUT = 50  # one conversation in this many is held out for evaluation
_MAX_HELD_OUT = 200  # documents


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """What to compute and for how long."""

    recipe: Recipe  # steps 0: as many as `epochs` takes
    rates: LearningRates
    cadence: Cadence
    length: int  # of a sequence
    epochs: float
    budget_s: float  # 0: no limit
    init_from: Path | None = None  # a head whose weights the run begins with
    cache_gb: float = 0.0  # for the target's states, which later epochs read


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutput:
    """The folder of the run and the form of the exported head."""

    folder: Path
    format: ExportFormat
    dtype: str
    resume: bool


def train_head(
    generator: AnswerGenerator,
    design: HeadDesign | BlockDesign,
    source: AnswerSource,
    plan: TrainingPlan,
    requested: RequestedDevice,
    output: TrainingOutput,
) -> None:
    """Train a head and export it. A resumed run continues from its last checkpoint."""
    target_folder = resolve_model(generator.model, BarReporter())
    fields = _fields(design, target_folder)
    before = _last_checkpoint(output)
    target = read_config(target_folder)
    config = design_config(fields, target)
    first = plan.init_from
    initial = InitialHead(first, config, target, target_folder) if first else None
    device = choose_training_device(requested, head_dim=config.layer.plain_attention.head_dim)
    output.folder.mkdir(parents=True, exist_ok=True)
    answers = output.folder / "answers.jsonl"
    documents = gather_answers(source, generator, answers, is_complete=before is not None)
    device.free_memory()
    known = before or initial
    ids = known.ids if known else _choose_draft_vocab(documents, design, target_folder)
    spec = HeadSpec(target_folder=target_folder, config=config, ids=ids, initial=initial)
    sequences, digest = _pack(documents, plan)
    cache = _state_cache(plan, sequences, config, device)
    if cache is not None:
        sequences = _grouped(sequences, plan, num_kept=len(cache))
    limit = _time_limit(plan, sequences) if before is None else None
    plan = _with_steps(plan, sequences, spec, device, before, cache)
    run = {**asdict(plan.recipe), **asdict(plan.rates), "length": plan.length, "answers": digest}
    run |= {"init_from": str(plan.init_from)} if plan.init_from else {}
    facts: dict[str, Any] = {"fields": fields, "target": generator.model, "run": run}
    trainer = Trainer(spec, plan.recipe, plan.rates, device, cache)
    start = TrainingCheckpoint(step=0, facts=facts, state_dict={}, ids=ids)
    if before is not None:
        check_same_run(before.facts["run"] | before.facts["fields"], run | fields)
        trainer.load_state_dict(before.state_dict)
        start = replace(start, step=before.step)
    training = TrainingRun(
        trainer, sequences, plan.cadence, folder=output.folder, start=start, limit=limit
    )
    last = training.finish()
    log_line(f"held out: {metrics_line(trainer.evaluate(sequences.held_out))}")
    _export(load_checkpoint(last), output, target_folder)


def _fields(design: HeadDesign | BlockDesign, target_folder: Path) -> dict[str, Any]:
    """The config.json of the head. Sizes that do not fit the target are refused."""
    if isinstance(design, BlockDesign):
        return block_fields(design, target_folder)
    fields = head_fields(design, target_folder)
    check_draft_vocab(design.draft_vocab, vocab=read_config(target_folder).vocab_size)
    return fields


def _last_checkpoint(output: TrainingOutput) -> TrainingCheckpoint | None:
    """The checkpoint to resume from; None for a new run."""
    checkpoints = list_checkpoints(output.folder / "checkpoints")
    if checkpoints and not output.resume:
        raise ConfigError(
            f"{output.folder} holds a run already; go on with --resume or use another --out"
        )
    if not checkpoints and _head_folder(output).exists():
        raise ConfigError(f"{_head_folder(output)} exists already; use another --out")
    return load_checkpoint(checkpoints[-1]) if checkpoints else None


def _head_folder(output: TrainingOutput) -> Path:
    return output.folder / "head"


def _choose_draft_vocab(
    documents: Sequence[Document], design: HeadDesign | BlockDesign, target_folder: Path
) -> torch.Tensor:  # [draft_vocab]
    if isinstance(design, BlockDesign):
        return torch.arange(read_config(target_folder).vocab_size)
    counts: Counter[int] = count_tokens(documents)
    tokenizer = load_tokenizer(target_folder)
    ids = choose_draft_tokens(
        counts,
        size=design.draft_vocab,
        vocab=read_config(target_folder).vocab_size,
        always=tokenizer.stop_ids | tokenizer.special_ids,
    )
    log_line(
        f"{len(ids)} tokens can be drafted, {coverage(counts, ids):.2%} of the target's answers"
    )
    return ids


def _pack(documents: Sequence[Document], plan: TrainingPlan) -> tuple[TrainingSequences, int]:
    """The packed sequences, and a checksum of those to train on."""
    chosen = [each for each in documents if zlib.crc32(each.id.encode()) % _HELD_OUT == 0]
    chosen = (chosen or list(documents)[-1:])[:_MAX_HELD_OUT]
    names = {each.id for each in chosen}
    rest = [each for each in documents if each.id not in names]
    packed = pack_documents(rest, length=plan.length, seed=plan.recipe.seed)
    order = BatchOrder(packed, size=plan.recipe.batch, seed=plan.recipe.seed)
    held_out = pack_documents(chosen, length=plan.length, seed=plan.recipe.seed)
    log_line(f"{_extent(packed)}; {len(chosen)} documents are held out")
    return TrainingSequences(order=order, held_out=held_out), zlib.crc32(packed.tokens.tobytes())


def _extent(packed: PackedDocuments) -> str:
    used = float((packed.documents >= 0).mean())
    return f"{len(packed)} sequences of {packed.tokens.shape[1]} tokens, {used:.1%} filled"


def _state_cache(
    plan: TrainingPlan, sequences: TrainingSequences, config: HeadConfig, device: TrainingDevice
) -> StateCache | None:
    return make_state_cache(
        num=len(sequences.order.packed),
        length=plan.length,
        hidden=config.aux.target_hidden,
        num_aux=len(config.aux.aux_layers.layers),
        limit_gb=plan.cache_gb,
        dtype=device.dtype,
        device=device.device,
    )


def _grouped(
    sequences: TrainingSequences, plan: TrainingPlan, *, num_kept: int
) -> TrainingSequences:
    """The same, with batches whose states are all kept or all not."""
    recipe, packed = plan.recipe, sequences.order.packed
    order = BatchOrder(packed, size=recipe.batch, seed=recipe.seed, num_kept=num_kept)
    return replace(sequences, order=order)


def _most_steps(plan: TrainingPlan, sequences: TrainingSequences) -> int:
    return plan.recipe.steps or max(1, round(plan.epochs * sequences.order.per_epoch))


def _time_limit(plan: TrainingPlan, sequences: TrainingSequences) -> TimeLimit | None:
    if not plan.budget_s:
        return None
    end_s = time.monotonic() + plan.budget_s
    return TimeLimit(end_s=end_s, most_steps=_most_steps(plan, sequences))


def _with_steps(
    plan: TrainingPlan,
    sequences: TrainingSequences,
    spec: HeadSpec,
    device: TrainingDevice,
    before: TrainingCheckpoint | None,
    cache: StateCache | None,
) -> TrainingPlan:
    """The plan with a number of steps: as requested or by epochs, but no more than fit the budget.

    A resumed run with a budget uses the number of steps that was measured at its start.
    """
    steps = _most_steps(plan, sequences)
    if plan.budget_s and before is None:
        trial = Trainer(spec, replace(plan.recipe, steps=steps), plan.rates, device, cache)
        steps = min(steps, steps_within(trial, sequences.order, plan.budget_s))
        del trial
        device.free_memory()
    elif plan.budget_s and before is not None:
        steps = int(before.facts["run"]["steps"])
    return replace(plan, recipe=replace(plan.recipe, steps=steps))


def _export(checkpoint: TrainingCheckpoint, output: TrainingOutput, target_folder: Path) -> None:
    """Export the head, and plot the run if matplotlib is installed."""
    folder = _head_folder(output)
    if not folder.exists():  # it exists when a finished run is resumed
        num_bytes = export_head(
            checkpoint,
            folder,
            target_folder=target_folder,
            format=output.format,
            dtype=output.dtype,
        )
        log_line(f"the head is in {folder} ({num_bytes / 1e6:.1f} MB)")
    try:
        log_line(f"the run is drawn in {plot_run(output.folder)}")
    except ConfigError as error:
        log_line(f"note: {error}")
