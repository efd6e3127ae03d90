"""The ways to decode that the benchmarks compare, each with its floors and peers."""

from dataclasses import dataclass, replace

from benchmarks.forced_acceptance import ForcedVerifier
from benchmarks.steps.bench_engines import BenchTarget, Drafting, budget_of, no_drafting
from benchmarks.steps.breakdown import measure_breakdown
from benchmarks.steps.device_rates import DeviceRates
from benchmarks.steps.free_drafter import FixedDraft
from benchmarks.steps.quantised_bodies import saved_bytes
from benchmarks.steps.step_args import Case, Extras, StepWork, Tree
from benchmarks.steps.step_floors import (
    DraftShape,
    Pass,
    iteration_passes,
    module_passes,
    step_passes,
)
from benchmarks.steps.step_report import PLAIN, StepSeries, verify_name
from benchmarks.steps.time_decode import Note, StepComparison, engine_for, measure_point
from benchmarks.steps.vllm_numbers import MeasuredModel, drafting_step, plain_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to decode, and what its steps are compared with."""

    name: str
    drafting: Drafting
    comparison: StepComparison


def plain_way(target: BenchTarget, card: str, rates: tuple[DeviceRates, ...]) -> Way:
    """One token per row and step."""
    return Way(
        name=PLAIN,
        drafting=no_drafting(),
        comparison=StepComparison(
            passes=lambda case, context: _step(target, case, context, nodes=1),
            peers=lambda case: plain_step(case, _measured_model(target, card)),
            rates=rates,
        ),
    )


def drafted_way(
    target: BenchTarget,
    tree: Tree,
    drafting: Drafting,
    draft_vocab: int,
    card: str,
    rates: tuple[DeviceRates, ...],
) -> Way:
    """Iterations of a random EAGLE-3 head and the target, with forced acceptance."""
    shape = DraftShape(
        vocab=draft_vocab,
        steps=tree.steps,
        topk=tree.topk,
        nodes=tree.nodes,
        emitted=tree.mean_emitted,
    )
    config, dtype = target.model.config, target.place.dtype
    return Way(
        name=f"EAGLE-3, steps {tree.steps}, topk {tree.topk}, nodes {tree.nodes}",
        drafting=drafting,
        comparison=StepComparison(
            passes=lambda case, context: _lighter(
                target,
                iteration_passes(config, dtype, shape, rows=case.rows, context=context),
                tokens=case.rows * tree.nodes,
            ),
            peers=lambda case: drafting_step(
                case, _measured_model(target, card), mean_emitted=tree.mean_emitted
            ),
            rates=rates,
        ),
    )


def module_way(
    target: BenchTarget, tree: Tree, drafting: Drafting, num: int, rates: tuple[DeviceRates, ...]
) -> Way:
    """Iterations of random modules and the target, with forced acceptance."""
    config, dtype = target.model.config, target.place.dtype
    shape = DraftShape(
        vocab=config.vocab_size,
        steps=tree.steps,
        topk=tree.topk,
        nodes=tree.nodes,
        emitted=tree.mean_emitted,
    )
    return Way(
        name=f"{num} modules, steps {tree.steps}, topk {tree.topk}, nodes {tree.nodes}",
        drafting=drafting,
        comparison=StepComparison(
            passes=lambda case, context: _lighter(
                target,
                module_passes(config, dtype, shape, rows=case.rows, context=context),
                tokens=case.rows * tree.nodes,
            ),
            peers=lambda _: (),
            rates=rates,
        ),
    )


def verify_way(target: BenchTarget, tree: Tree, rates: tuple[DeviceRates, ...]) -> Way:
    """The target over trees of that many nodes; drafts cost nothing and are never accepted."""
    budget = budget_of(tree)
    nodes = budget.nodes
    verifier = ForcedVerifier(1.0, device=target.device)
    return Way(
        name=verify_name(nodes),
        drafting=Drafting(kind=FixedDraft(budget=budget), verifier=verifier),
        comparison=StepComparison(
            passes=lambda case, context: _step(target, case, context, nodes=nodes),
            peers=lambda _: (),
            rates=rates,
        ),
    )


def measure_way(
    target: BenchTarget,
    way: Way,
    work: StepWork,
    extras: Extras,
    note: Note,
) -> StepSeries:
    """One case after another, on one engine with room for the largest."""
    loaded = engine_for(target, way.drafting, work)
    points, breakdowns = [], []
    for case in work.cases:
        note(f"{way.name}: {case.rows} rows, prompt {case.prompt}")
        points.append(
            measure_point(
                loaded,
                case,
                steps=work.steps,
                comparison=way.comparison,
                device=target.device,
            )
        )
        if extras.has_breakdown:
            breakdowns.append(measure_breakdown(loaded.engine, case, target.device))
    return StepSeries(
        name=way.name,
        points=tuple(points),
        breakdowns=tuple(breakdowns),
        cold_starts=(),
    )


def _step(target: BenchTarget, case: Case, context: float, *, nodes: int) -> tuple[Pass, ...]:
    config, dtype = target.model.config, target.place.dtype
    passes = step_passes(config, dtype, rows=case.rows, nodes=nodes, context=context)
    return _lighter(target, passes, tokens=case.rows * nodes)


def _lighter(target: BenchTarget, passes: tuple[Pass, ...], *, tokens: int) -> tuple[Pass, ...]:
    """The passes with the bytes of a quantised target, whose pass is the first."""
    first, place = passes[0], target.place
    saved = saved_bytes(target.model.config, place.dtype, place.quantization, tokens=tokens)
    return replace(first, weight_bytes=first.weight_bytes - saved), *passes[1:]


def _measured_model(target: BenchTarget, card: str) -> MeasuredModel:
    return MeasuredModel(model=target.name, dtype=target.place.dtype, card=card)
