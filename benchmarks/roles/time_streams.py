"""How steadily answers come while long prompts arrive: on one server, and with roles apart."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from benchmarks.roles.servers import Pair, ask_first_token, get, stream_times
from benchmarks.roles.time_transfers import random_prompt

_STREAM_PROMPT = 64  # tokens of a prompt that is answered all the time
_SETTLE_S = 2.0  # until all streams run; also the time without long prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLoad:
    """What the servers are asked."""

    streams: int  # answers at a time
    arrivals: int  # long prompts, one after another
    length: int  # tokens of a long prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """Seconds."""

    quiet_gaps: list[float]  # between events of a stream while no long prompt is computed
    busy_gaps: list[float]  # while one is
    first_tokens: list[float]  # of long prompts, from the question on
    accept_length: float  # tokens per round of the decode server


@dataclass(slots=True)
class _Streams:
    """Answers that begin again when they end, until `stop` is set."""

    url: str
    stop: threading.Event = field(default_factory=threading.Event)
    gaps: list[tuple[float, float]] = field(default_factory=list)  # when it ended, how long it was

    def run(self) -> None:
        body = {"max_tokens": 512, "ignore_eos": True, "temperature": 0}
        while not self.stop.is_set():
            last = 0.0
            for now in stream_times(self.url, {**body, "prompt": random_prompt(_STREAM_PROMPT)}):
                if last:
                    self.gaps.append((now, now - last))
                last = now
                if self.stop.is_set():
                    break  # closes the connection, which ends the answer

    def within(self, began_s: float, ended_s: float) -> list[float]:
        return [gap for at, gap in self.gaps if began_s <= at - gap and at < ended_s]

    def touching(self, began_s: float, ended_s: float) -> list[float]:
        """With the gap that the last prompt made long: it ends after that prompt's first token."""
        return [gap for at, gap in self.gaps if at - gap < ended_s and began_s < at]


def time_streams(pair: Pair, load: StreamLoad) -> StreamReport:
    """Streams alone for a while, then with long prompts beside them."""
    ask_first_token(pair, random_prompt(load.length))  # kernels, and connections between servers
    streams = _Streams(pair.decode)
    with ThreadPoolExecutor(load.streams) as pool:
        running = [pool.submit(streams.run) for _ in range(load.streams)]
        try:
            time.sleep(_SETTLE_S)
            quiet_s = time.perf_counter()
            time.sleep(_SETTLE_S)
            busy_s = time.perf_counter()
            first_tokens = [
                _time_arrival(pair, random_prompt(load.length)) for _ in range(load.arrivals)
            ]
            ended_s = time.perf_counter()
        finally:
            streams.stop.set()  # the pool waits for its streams, also when a prompt has failed
    for each in running:
        each.result()
    return StreamReport(
        quiet_gaps=streams.within(quiet_s, busy_s),
        busy_gaps=streams.touching(busy_s, ended_s),
        first_tokens=first_tokens,
        accept_length=_accept_length(pair),
    )


def _accept_length(pair: Pair) -> float:
    (state,) = get(pair.decode + "/server_info")["internal_states"]
    return float(state["avg_spec_accept_length"])


def _time_arrival(pair: Pair, prompt: list[int]) -> float:
    found = ask_first_token(pair, prompt)
    return found.prefill_s + found.decode_s


def summarise(report: StreamReport) -> dict[str, float]:
    """Medians and the slowest hundredth, in seconds; how many gaps there were."""
    return {
        "quiet_p50_s": _quantile(report.quiet_gaps, 0.5),
        "quiet_p99_s": _quantile(report.quiet_gaps, 0.99),
        "busy_p50_s": _quantile(report.busy_gaps, 0.5),
        "busy_p99_s": _quantile(report.busy_gaps, 0.99),
        "busy_longest_s": max(report.busy_gaps, default=0.0),
        "first_token_p50_s": _quantile(report.first_tokens, 0.5),
        "num_quiet_gaps": len(report.quiet_gaps),
        "num_busy_gaps": len(report.busy_gaps),
        "accept_length": report.accept_length,
    }


def describe_summary(name: str, summary: dict[str, float]) -> str:
    """A line of the table, in milliseconds."""
    cells = [value for key, value in summary.items() if key.endswith("_s")]
    times = "".join(f"{1e3 * seconds:>12.1f}" for seconds in cells)
    return f"{name:<14}{times}{summary['accept_length']:>12.2f}"


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
