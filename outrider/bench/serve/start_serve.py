"""From checked flags to a printed report. Ctrl-C ends the load, not the report."""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.bench.report import write_report
from outrider.bench.serve.client_lag import ClientLoad, LagMeter
from outrider.bench.serve.http_client import Client, open_session
from outrider.bench.serve.live_display import load_display
from outrider.bench.serve.load_driver import Driver, SendRequest, is_hopeless
from outrider.bench.serve.load_journal import LoadJournal
from outrider.bench.serve.load_summary import Summary
from outrider.bench.serve.request_outcome import Outcome
from outrider.bench.serve.serve_args import ClosedLoop, LoadArgs
from outrider.bench.serve.serve_report import (
    LoadReport,
    ReportedAcceptance,
    describe_load,
    print_load,
)
from outrider.bench.serve.server_acceptance import ServerAcceptance, between
from outrider.bench.serve.server_counters import explain_failure, find_model, scrape
from outrider.errors import ConfigError

_WARM_UP_CLIENTS = 16
_MAX_FILES = 65536
_CLOCK = time.perf_counter


def bench_load(
    args: LoadArgs,
    *,
    json_path: Path | None,
    picture_path: Path | None,  # a PNG
) -> None:
    """Measure, print, and write the wanted files, also of a run that was cut short."""
    _allow_many_connections()
    report, is_cut_short = asyncio.run(measure(args))
    print_load(report)
    write_report(json_path, describe_load(report))
    if picture_path is not None and report.summary.answers:
        from outrider.bench.serve.plot_latency import plot_load

        plot_load(report, picture_path)
    if is_cut_short:
        raise KeyboardInterrupt
    if not report.summary.answers:
        raise ConfigError(explain_failure(report.summary.failures[0], args.endpoint, report.model))


async def measure(args: LoadArgs) -> tuple[LoadReport, bool]:
    """The report of a run, and whether the user cut it short."""
    async with open_session(args.endpoint) as session:
        model = await find_model(session, args.endpoint, args.models)
        client = Client(session, args.endpoint, _CLOCK)
        await _warm_up(client, args, model)
        before = await scrape(session, args.endpoint)
        journal = LoadJournal()
        load, is_cut_short = await _drive(
            _request_sender(client, args, model, journal), args, journal
        )
        after = await scrape(session, args.endpoint)
    if not journal.answers and any(map(is_hopeless, journal.failures)):
        raise ConfigError(explain_failure(journal.failures[0], args.endpoint, model))
    summary = Summary(
        answers=tuple(journal.answers),
        failures=tuple(journal.failures),
        num_unfinished=journal.num_unfinished,
        slo=args.slo,
    )
    reported = choose_acceptance(summary, before=before, after=after)
    report = LoadReport(args=args, model=model, summary=summary, reported=reported, client=load)
    return report, is_cut_short


def choose_acceptance(
    summary: Summary, *, before: tuple[ServerAcceptance, ...], after: tuple[ServerAcceptance, ...]
) -> ReportedAcceptance:
    """The counts in the answers if all have them, else the change of the counters of /metrics."""
    reported = [each for answer in summary.answers for each in answer.acceptances]
    if reported and len(reported) == len(summary.answers):
        total = ServerAcceptance.sum_of(reported)
        return ReportedAcceptance(
            acceptances=(total,) if total.rounds else (), source="reported with the answers"
        )
    moved = between(before[0], after[0]) if before and after else ()
    return ReportedAcceptance(acceptances=moved, source="counters of /metrics, of all clients")


def _request_sender(
    client: Client, args: LoadArgs, model: str, journal: LoadJournal
) -> SendRequest:
    def send(index: int) -> Awaitable[Outcome]:
        body = args.questions.body(index, model=model, endpoint=args.endpoint.name)
        return client.send(index, body, note_chunk=journal.note_chunk)

    return send


async def _warm_up(client: Client, args: LoadArgs, model: str) -> None:
    """Send requests that are not counted; a failure here ends the run before it begins."""
    journal, num = LoadJournal(), args.num_warm_up
    send = _request_sender(client, args, model, journal)
    # Prompts after those of the run: the run's own must not be in a prefix cache.
    driver = Driver(lambda index: send(args.questions.num + index), journal, _CLOCK)
    with load_display("warm-up", num) as display:
        drawing = asyncio.create_task(display.run(journal, _CLOCK))
        try:
            await driver.run(ClosedLoop(concurrency=_WARM_UP_CLIENTS), num)
        finally:
            drawing.cancel()
    for failure in journal.failures:
        raise ConfigError(explain_failure(failure, args.endpoint, model))


async def _drive(
    send: SendRequest, args: LoadArgs, journal: LoadJournal
) -> tuple[ClientLoad, bool]:
    """Run the load; returns the client's own load, and whether the user cut the run short."""
    driver, meter = Driver(send, journal, _CLOCK), LagMeter(_CLOCK)
    with load_display("requests", args.questions.num) as display, _interrupts(driver) as arrived:
        tasks = [
            asyncio.create_task(meter.run()),
            asyncio.create_task(display.run(journal, _CLOCK)),
        ]
        try:
            await driver.run(args.pattern, args.questions.num)
        finally:
            for task in tasks:
                task.cancel()
        return meter.read(journal.lates_s), bool(arrived)


@contextmanager
def _interrupts(driver: Driver) -> Iterator[list[int]]:
    """Collects the Ctrl-C that arrive: the first stops the driver, the second ends the process."""
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived  # only the main thread can handle signals
        return
    loop, handler = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)

    def stop(number: int, _frame: object) -> None:
        arrived.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        loop.call_soon_threadsafe(driver.stop)

    signal.signal(signal.SIGINT, stop)
    try:
        yield arrived
    finally:
        signal.signal(signal.SIGINT, handler)


def _allow_many_connections() -> None:
    """Raise the limit of open files: every request under way is an open file."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _MAX_FILES:
        return
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
