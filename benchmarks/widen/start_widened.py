"""From checked flags to a written folder or a printed report."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.steps.bench_engines import (
    BenchTarget,
    Drafting,
    build,
    memory_bytes,
    no_drafting,
    resolve_place,
)
from benchmarks.steps.body import Body
from benchmarks.steps.device_rates import DeviceRates, measure_rates
from benchmarks.steps.start_steps import setting_of
from benchmarks.steps.step_args import Place
from benchmarks.steps.step_floors import DraftShape, Pass, iteration_passes, step_passes, total_s
from benchmarks.steps.step_report import PLAIN
from benchmarks.steps.time_decode import StepFloor
from benchmarks.widen.load_widened import build_wide, build_wide_heads, opened
from benchmarks.widen.widen_args import AnswerWork, SmallModel
from benchmarks.widen.widened_answers import Answered, WidenedQuestions, measure_answers
from benchmarks.widen.widened_report import (
    WidenedOutcome,
    WidenedReport,
    describe_widened,
    print_widened,
)
from benchmarks.widen.write_widened import HEAD_FOLDER, write_widened
from outrider.bench.offline.workload import encode_chat
from outrider.bench.report import write_report
from outrider.bench.run_progress import run_bar
from outrider.errors import ConfigError
from outrider.frontend.tokenizer.tokenizer import load_tokenizer
from outrider.models.draft_model import AnyDraftModel
from outrider.ops.tree.verify import verify
from outrider.runtime.draft_kinds import ModelDraft
from outrider.wire.draft_budget import Budget
from outrider.wire.submission import Limits

Note = Callable[[str], None]  # called with the name of every run as it begins


def bench_widen(model: SmallModel, body: Body, out: Path, *, dtype: str) -> None:
    """Write the wide model, and print what was written."""
    size = write_widened(model.folder, body, out, heads=model.heads, dtype=dtype)
    print(f"{out}: {model.name} in the shapes of {body.name}, {dtype}, {size / 1e9:.2f} GB")
    for head in model.heads:
        print(f"{out / HEAD_FOLDER}: its head {head.name} in the same width")


def bench_widened(
    model: SmallModel, body: Body, place: Place, work: AnswerWork, json_path: Path | None
) -> None:
    """Answer questions with every drafter and tree, print, and write the JSON file if wanted."""
    target, heads = _load(model, body, place)
    questions = _questions(model.folder, work, max_context=target.model.config.max_context)
    rates = measure_rates(target.device, target.model.dtype)
    ways = dict(_ways(heads, work))
    with run_bar(len(ways) * len(work.rows)) as note:
        outcomes = [
            outcome
            for name, drafting in ways.items()
            for outcome in _measure(target, name, drafting, questions, work.rows, rates, note)
        ]
    report = WidenedReport(
        setting=setting_of(target, rates),
        origin=f"{len(questions.prompts)} prompts of {work.origin}",
        max_tokens=work.max_tokens,
        outcomes=tuple(outcomes),
    )
    print_widened(report)
    write_report(json_path, describe_widened(report))


def _load(
    model: SmallModel, body: Body, place: Place
) -> tuple[BenchTarget, tuple[AnyDraftModel, ...]]:
    settings = resolve_place(place)
    arithmetic, dtype = settings.execution.arithmetic, place.dtype
    with opened(model.folder, body, model.heads) as small:
        device = torch.device(settings.device)
        decoder = build_wide(small, dtype=dtype, device=device, arithmetic=arithmetic)
        heads = build_wide_heads(small, decoder, dtype=dtype, arithmetic=arithmetic)
    target = BenchTarget(
        name=f"{model.name} widened to {body.name}",
        model=decoder,
        place=place,
        execution=settings.execution,
        is_dummy=False,
    )
    return target, heads


def _questions(folder: Path, work: AnswerWork, *, max_context: int) -> WidenedQuestions:
    """The prompts as the chat template frames them; those that leave room for an answer."""
    tokenizer = load_tokenizer(folder)
    encoded = [tuple(encode_chat(tokenizer, text)) for text in work.texts]
    fitting = tuple(each for each in encoded if len(each) + work.max_tokens <= max_context)
    if not fitting:
        raise ConfigError(f"no prompt fits beside {work.max_tokens} tokens; lower --max-tokens")
    limits = Limits(max_tokens=work.max_tokens, stop_ids=tokenizer.stop_ids)
    return WidenedQuestions(prompts=fitting, limits=limits)


def _ways(heads: Sequence[AnyDraftModel], work: AnswerWork) -> Iterator[tuple[str, Drafting]]:
    yield PLAIN, no_drafting()
    for head in heads:
        for name, tree in work.trees.items():
            budget = Budget(steps=tree.steps, topk=tree.topk, nodes=tree.nodes)
            yield name, Drafting(kind=ModelDraft(model=head, budget=budget), verifier=verify)


def _measure(
    target: BenchTarget,
    name: str,
    drafting: Drafting,
    questions: WidenedQuestions,
    rows: Sequence[int],
    rates: tuple[DeviceRates, ...],
    note: Note,
) -> Iterator[WidenedOutcome]:
    """Measure one number of rows after another, on one engine with room for the most."""
    context = min(questions.longest, target.model.config.max_context)
    loaded = build(target, drafting, rows=max(rows), context=context)
    for each in rows:
        note(f"{name}: {each} rows")
        answered = measure_answers(loaded, questions, rows=each)
        passes = _passes(target, drafting, answered, rows=each)
        yield WidenedOutcome(
            way=name,
            rows=each,
            answered=answered,
            floors=tuple(
                StepFloor(rates=rate.name, step_s=total_s(passes, rate)) for rate in rates
            ),
            memory_bytes=memory_bytes(target.device),
        )


def _passes(
    target: BenchTarget, drafting: Drafting, answered: Answered, *, rows: int
) -> tuple[Pass, ...]:
    """The passes of a step in which all rows draft and emit as many tokens as measured here."""
    config, dtype = target.model.config, target.place.dtype
    kind, context = drafting.kind, answered.speed.context
    if not isinstance(kind, ModelDraft):
        return step_passes(config, dtype, rows=rows, nodes=1, context=context)
    shape = DraftShape(
        vocab=kind.model.target_ids.shape[0],
        steps=kind.budget.steps,
        topk=kind.budget.topk,
        nodes=kind.budget.nodes,
        emitted=answered.speed.accept_length,
    )
    return iteration_passes(config, dtype, shape, rows=rows, context=context)
