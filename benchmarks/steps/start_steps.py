"""`decode`, `iteration` and `prefill`, from checked flags to a printed report."""

from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.steps.bench_engines import (
    BenchTarget,
    Drafting,
    budget_of,
    head_drafting,
    load_bench_target,
    module_drafting,
    no_drafting,
)
from benchmarks.steps.body import Body
from benchmarks.steps.cold_start import ColdStart, measure_cold_start
from benchmarks.steps.decode_ways import drafted_way, measure_way, module_way, plain_way, verify_way
from benchmarks.steps.device_rates import DeviceRates, measure_rates
from benchmarks.steps.quantised_bodies import saved_bytes
from benchmarks.steps.step_args import Extras, Place, StepWork, Stored, Tree
from benchmarks.steps.step_floors import held_bytes, read_bytes
from benchmarks.steps.step_report import (
    StepReport,
    StepSetting,
    Weights,
    describe_prefill,
    describe_steps,
)
from benchmarks.steps.step_table import print_prefill, print_steps
from benchmarks.steps.time_prefill import count_prompt_runs, measure_prefill
from outrider.bench.machine import this_machine
from outrider.bench.report import write_report
from outrider.bench.run_progress import run_bar

_PREFILL_RUNS = 5


def bench_decode(
    source: Body | Stored, place: Place, work: StepWork, extras: Extras, json_path: Path | None
) -> None:
    """Measure plain decoding, print, and write the JSON file if one is wanted."""
    target = load_bench_target(source, place)
    cold_starts = _cold_starts(target, no_drafting(), work, extras)
    rates = measure_rates(target.device, target.model.dtype)
    way = plain_way(target, card_of(target), rates)
    with run_bar(len(work.cases)) as note:
        series = measure_way(target, way, work, extras, note)
    subject = replace(series, cold_starts=cold_starts)
    _publish(StepReport(setting=setting_of(target, rates), series=(subject,)), json_path)


def bench_iteration(
    body: Body,
    tree: Tree,
    place: Place,
    work: StepWork,
    extras: Extras,
    *,
    num_modules: int,  # inside the target; with 0 an EAGLE-3 head drafts
    with_plain: bool,  # also measure plain steps, and steps that only verify drafts
    json_path: Path | None,
) -> None:
    """Measure speculative iterations, print, and write the JSON file if one is wanted."""
    budget_of(tree)
    target = load_bench_target(body, place)
    drafting = (
        module_drafting(target, tree, num=num_modules)
        if num_modules
        else head_drafting(target, tree, draft_vocab=body.draft_vocab)
    )
    cold_starts = _cold_starts(target, drafting, work, extras)
    rates = measure_rates(target.device, target.model.dtype)
    ways = [
        module_way(target, tree, drafting, num_modules, rates)
        if num_modules
        else drafted_way(target, tree, drafting, body.draft_vocab, card_of(target), rates)
    ]
    if with_plain:
        ways += [plain_way(target, card_of(target), rates), verify_way(target, tree, rates)]
    with run_bar(len(ways) * len(work.cases)) as note:
        first, *others = [measure_way(target, way, work, extras, note) for way in ways]
    subject = replace(first, cold_starts=cold_starts)
    _publish(StepReport(setting=setting_of(target, rates), series=(subject, *others)), json_path)


def bench_prefill(
    source: Body | Stored,
    place: Place,
    *,
    tokens: int,
    has_breakdown: bool,
    json_path: Path | None,
) -> None:
    """Measure one long prompt, print, and write the JSON file if one is wanted."""
    target = load_bench_target(source, place)
    rates = measure_rates(target.device, target.model.dtype)
    with run_bar(count_prompt_runs(_PREFILL_RUNS)) as note:
        prefill = measure_prefill(
            target,
            tokens=tokens,
            repetitions=_PREFILL_RUNS,
            has_breakdown=has_breakdown,
            matrix_rate=rates[-1].matrix,
            note=note,
        )
    setting = setting_of(target, rates)
    print_prefill(setting, prefill)
    write_report(json_path, describe_prefill(setting, prefill))


def _cold_starts(
    target: BenchTarget, drafting: Drafting, work: StepWork, extras: Extras
) -> tuple[ColdStart, ...]:
    """The cold start if --cold-start is set. Runs before anything else on the device."""
    return (measure_cold_start(target, drafting, work),) if extras.has_cold_start else ()


def _publish(report: StepReport, json_path: Path | None) -> None:
    print_steps(report)
    write_report(json_path, describe_steps(report))


def card_of(target: BenchTarget) -> str:
    """The device as it calls itself."""
    on_cuda = target.device.type == "cuda"
    return torch.cuda.get_device_name(target.device) if on_cuda else "CPU"


def setting_of(target: BenchTarget, rates: tuple[DeviceRates, ...]) -> StepSetting:
    """The model, the device and the rates."""
    config, place = target.model.config, target.place
    return StepSetting(
        weights=Weights(
            model=target.name,
            is_dummy=target.is_dummy,
            dtype=place.dtype,
            held_bytes=held_bytes(config, place.dtype)
            - saved_bytes(config, place.dtype, place.quantization),
            read_bytes=read_bytes(config, place.dtype)
            - saved_bytes(config, place.dtype, place.quantization, tokens=1.0),
            cut_layers=config.num_layers if target.is_cut else 0,
        ),
        machine=this_machine(has_busy_neighbour=False),
        card=card_of(target),
        executor=target.execution.executor,
        is_deterministic=place.is_deterministic,
        rates=rates,
    )
