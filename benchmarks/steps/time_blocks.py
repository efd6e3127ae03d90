"""`blocks`, from checked flags to a printed report: rounds of heads that draft a block."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.dummy_models import dummy_block_head
from benchmarks.forced_acceptance import ForcedVerifier
from benchmarks.steps.bench_engines import BenchTarget, Drafting, load_bench_target
from benchmarks.steps.block_args import BlockShape
from benchmarks.steps.body import Body
from benchmarks.steps.decode_ways import Way, measure_way, plain_way
from benchmarks.steps.device_rates import DeviceRates, measure_rates
from benchmarks.steps.start_steps import card_of, setting_of
from benchmarks.steps.step_args import Extras, Place, StepWork
from benchmarks.steps.step_floors import block_passes
from benchmarks.steps.step_report import PLAIN, StepReport, describe_steps
from benchmarks.steps.step_table import setting_lines
from benchmarks.steps.time_decode import StepComparison
from outrider.bench.report import ReportPrinter, build_table, numbers, texts, write_report
from outrider.bench.run_progress import run_bar
from outrider.config.engine_config import DRAFT_ARITHMETIC
from outrider.errors import ConfigError
from outrider.models.decoder import Decoder
from outrider.runtime.draft_kinds import BlockDraft
from outrider.wire.draft_budget import Budget

_NO_EXTRAS = Extras(has_breakdown=False, has_cold_start=False)


def bench_blocks(
    body: Body,
    shapes: Sequence[BlockShape],
    place: Place,
    work: StepWork,
    json_path: Path | None,
) -> None:
    """Measure plain steps and rounds of every shape, print them, and write the JSON file."""
    target = load_bench_target(body, place)
    rates = measure_rates(target.device, target.model.dtype)
    series = []
    with run_bar((1 + len(shapes)) * len(work.cases)) as note:
        series.append(
            measure_way(target, plain_way(target, card_of(target), rates), work, _NO_EXTRAS, note)
        )
        for shape in shapes:  # one head at a time has memory
            way = block_way(target, shape, rates)
            series.append(measure_way(target, way, work, _NO_EXTRAS, note))
    report = StepReport(setting=setting_of(target, rates), series=tuple(series))
    print_blocks(report)
    write_report(json_path, describe_steps(report))


def block_way(target: BenchTarget, shape: BlockShape, rates: tuple[DeviceRates, ...]) -> Way:
    """Rounds of a random head that drafts a block, with forced acceptance."""
    model, tree, dtype = target.model, shape.tree, target.place.dtype
    if not isinstance(model, Decoder):
        raise ConfigError(f"there is no such head for {target.name}; use a body like a Llama")
    config = model.config
    head = dummy_block_head(model, shape, dtype=dtype, arithmetic=DRAFT_ARITHMETIC)
    budget = Budget(steps=tree.steps, topk=tree.topk, nodes=tree.nodes)
    return Way(
        name=shape.name,
        drafting=Drafting(
            kind=BlockDraft(model=head, budget=budget),
            verifier=ForcedVerifier(tree.mean_emitted, device=target.device),
        ),
        comparison=StepComparison(
            passes=lambda case, context: block_passes(
                config, dtype, shape, rows=case.rows, context=context
            ),
            peers=lambda _: (),
            rates=rates,
        ),
    )


def print_blocks(report: StepReport) -> None:
    """Print one table on stdout: a line for every drafter, tree and number of rows."""
    printer = ReportPrinter()
    printer.setting(setting_lines(report.setting))
    lines = []
    for series in report.series:
        for point in series.points:
            steady, floor = point.steady, point.floors[-1]
            plain = [f"{ratio:.2f}x" for ratio in report.against_plain(series.name, point)]
            emitted = steady.emitted / len(steady.steps_s) / point.case.rows
            lines.append(
                (
                    series.name,
                    str(point.case.rows),
                    f"{steady.step_s * 1e3:.3f}",
                    f"{floor.step_s * 1e3:.3f}",
                    f"{steady.step_s / floor.step_s:.2f}x",
                    *(plain or [""]),
                    f"{emitted:.2f}" if series.name != PLAIN else "1",
                    f"{steady.tokens_per_s:.0f}",
                )
            )
    titles = ("rows", "ms", "floor", "x floor", "x plain", "tokens\n/round", "tok/s")
    printer.table(build_table((*texts("round"), *numbers(*titles)), lines, is_tight=True))
    printer.note(
        "floor: each matrix of target and head read once in every pass that needs it, or "
        "multiplied at the\nmatrix rate if that takes longer; KV read once. ms: median of the "
        "timed rounds. Acceptance is\nforced, and the trees of random heads are shallow."
    )
