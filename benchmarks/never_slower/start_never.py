"""`python -m benchmarks never-slower`, from checked flags to a printed table."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.churn.random_churn import random_prompts
from benchmarks.never_slower.never_args import LoadPlace, NeverWork
from benchmarks.never_slower.never_engines import NeverEngines, start_engines
from benchmarks.never_slower.never_table import (
    NeverCell,
    TimedRun,
    cells_of,
    describe_never,
    markdown_of,
    print_never,
)
from benchmarks.never_slower.timed_load import LoadedWay, time_load
from benchmarks.steps.bench_engines import load_bench_target
from benchmarks.steps.body import Body
from benchmarks.steps.step_args import Place
from outrider.bench.churn.run_churn import TokenIds
from outrider.bench.machine import this_machine
from outrider.bench.report import SettingLine, describe_record, write_report
from outrider.bench.run_progress import run_bar

_NUM_PROMPTS = 512
_WARM_S = 0.3  # of a load that does not count, in every way
_AROUND = 1.2  # times its seconds: a load with its prompts, its start and its end
Note = Callable[[str], None]  # called with the name of every load as it begins


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverFiles:
    """Where results go besides the terminal; each is optional."""

    json_path: Path | None
    markdown_path: Path | None


def bench_never_slower(
    work: NeverWork, body: Body, place: Place, files: NeverFiles, *, limit_s: float
) -> None:
    """Measure, print, and write the files after every load: a run that is ended leaves them."""
    began = time.perf_counter()
    target = load_bench_target(body, place)
    limits = work.limits
    vocab = target.model.config.vocab_size
    prompts = tuple(random_prompts(_NUM_PROMPTS, mean=limits.prompt, vocab=vocab))
    machine = describe_record(this_machine(has_busy_neighbour=False))
    described = {"machine": machine, "model": body.name, "work": describe_record(work)}
    with run_bar(1 + work.num_loads) as note:
        note("starting the engines")
        engines = start_engines(target, work, draft_vocab=body.draft_vocab)
        start_s = time.perf_counter() - began
        table = _Table(work, files, described | {"start_s": start_s})
        _warm_up(engines, work, prompts)
        for run in _runs(engines, work, prompts, table, ends_at=began + limit_s, note=note):
            table.add(run)
    took = f"{time.perf_counter() - began:.0f} s, {start_s:.0f} of them to start"
    print_never([*_setting(body, work), ("took", took)], table.cells, table.dropped)


class _Table:
    """Owns what was measured, and writes the files."""

    def __init__(self, work: NeverWork, files: NeverFiles, described: dict[str, Any]) -> None:
        self._work, self._files, self._described = work, files, described
        self._runs: list[TimedRun] = []
        self.cells: list[NeverCell] = []
        self.dropped: list[str] = []  # loads that there was no time for

    def add(self, run: TimedRun) -> None:
        self._runs.append(run)
        self.write()

    def drop(self, name: str) -> None:
        self.dropped.append(name)
        self.write()

    def write(self) -> None:
        self.cells = cells = cells_of(self._runs, self._work.texts)
        numbers = describe_never(self._runs, cells, self.dropped)
        write_report(self._files.json_path, self._described | numbers)
        if self._files.markdown_path is not None:
            self._files.markdown_path.write_text(markdown_of(cells, self.dropped), encoding="utf-8")


def _warm_up(engines: NeverEngines, work: NeverWork, prompts: tuple[TokenIds, ...]) -> None:
    """A short load of every way, so that no load that counts is the first of its process."""
    place = LoadPlace(rows=work.most_rows, kind="churn")
    for way in (engines.plain, *engines.drafted):
        time_load(way, place, work.limits, prompts, seconds=_WARM_S)


def _runs(
    engines: NeverEngines,
    work: NeverWork,
    prompts: tuple[TokenIds, ...],
    table: _Table,
    *,
    ends_at: float,
    note: Note,
) -> Iterator[TimedRun]:
    """Every load in every way; texts are dropped that would not be complete in time."""

    def run(way: LoadedWay, place: LoadPlace, text: str) -> TimedRun:
        note(f"{place.rows} rows, {place.kind}, {text or 'any text'}: {way.name}")
        seconds = work.limits.load_s(place.rows)
        timed = time_load(way, place, work.limits, prompts, seconds=seconds)
        return TimedRun(place=place, text=text, run=timed)

    for place in work.places():
        load_s = _AROUND * work.limits.load_s(place.rows)
        num_plain = 1  # loads before those of a text
        for text in work.texts:
            left_s = ends_at - time.perf_counter()
            if left_s < (num_plain + len(engines.drafted)) * load_s:
                table.drop(f"{place.rows} rows, {place.kind}, {text.name}")
                continue
            if num_plain:
                yield run(engines.plain, place, "")
                num_plain = 0
            for way in engines.drafted:
                engines.use_chance(text.chance)
                yield run(way, place, text.name)


def _setting(body: Body, work: NeverWork) -> Iterator[SettingLine]:
    limits, engines = work.limits, "kept" if work.keeps_engines else "fresh"
    yield (
        "model",
        f"{body.name}, random weights; each draft is accepted with the chance of the text",
    )
    yield (
        "loads",
        f"prompts of {limits.prompt} tokens on average, churn: answers of {limits.answer}; "
        f"{engines} engines",
    )
