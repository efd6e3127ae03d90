"""The numbers of a run, computed from its outcomes. The same outcomes give the same numbers."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from outrider.bench.serve.request_outcome import Failure, Outcome, ServerAnswer
from outrider.bench.serve.serve_args import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The distribution of some values; all zero where there are none."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def spread_of(values: Iterable[float]) -> Spread:
    ordered = sorted(values) or [0.0]
    return Spread(
        mean=sum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest values, as numpy does it; `share` is in percent."""
    place = (len(ordered) - 1) * share / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The numbers of a run. Requests that the user cut short are counted, and used nowhere else."""

    answers: tuple[ServerAnswer, ...]
    failures: tuple[Failure, ...]
    num_unfinished: int
    slo: Slo

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return (*self.answers, *self.failures)

    @cached_property
    def start_s(self) -> float:
        return min((_sent_s(each) for each in self.outcomes), default=0.0)

    @cached_property
    def duration_s(self) -> float:
        """Seconds from the first sent request to the end of the last one."""
        return max((_ended_s(each) for each in self.outcomes), default=0.0) - self.start_s

    @property
    def ttft(self) -> Spread:
        return spread_of(answer.timeline.ttft_s for answer in self.answers)

    @property
    def tpot(self) -> Spread:
        """Spread of the mean time per token; each request counts once."""
        return spread_of(tpot_s for answer in self.answers for tpot_s in answer.tpots_s)

    @property
    def itl(self) -> Spread:
        """Spread of all gaps of all requests."""
        return spread_of(gap for answer in self.answers for gap in answer.timeline.itls_s)

    @property
    def latency(self) -> Spread:
        return spread_of(answer.timeline.latency_s for answer in self.answers)

    @property
    def output_tokens(self) -> int:
        return sum(answer.tokens.output for answer in self.answers)

    @property
    def prompt_tokens(self) -> int:
        return sum(answer.tokens.prompt for answer in self.answers)

    @property
    def num_counted_by_server(self) -> int:
        """Answers that came with usage; of the others, chunks were counted."""
        return sum(answer.tokens.is_counted_by_server for answer in self.answers)

    @property
    def tokens_per_chunk(self) -> float:
        """Above 1 if chunks hold several tokens: then an ITL spans several tokens."""
        num_chunks = sum(len(answer.timeline.texts_s) for answer in self.answers)
        return self.output_tokens / num_chunks if num_chunks else 0.0

    def per_s(self, count: float) -> float:
        return count / self.duration_s if self.duration_s > 0 else 0.0

    @cached_property
    def num_good(self) -> int:
        """Requests that were answered within both limits."""
        return sum(is_good(answer, self.slo) for answer in self.answers)

    @property
    def good_rate(self) -> float:
        """Share of good requests among all that ended, failures included."""
        return self.num_good / len(self.outcomes) if self.outcomes else 0.0

    @property
    def mean_running(self) -> float:
        return self.per_s(sum(_ended_s(each) - _sent_s(each) for each in self.outcomes))

    @property
    def max_running(self) -> int:
        starts = ((_sent_s(each), 1) for each in self.outcomes)
        ends = ((_ended_s(each), -1) for each in self.outcomes)
        changes = (change for _, change in sorted([*starts, *ends]))  # at one time ends come first
        return max(itertools.accumulate(changes), default=0)

    @property
    def kinds(self) -> dict[str, tuple[Failure, ...]]:
        """The failures of each kind, the most frequent kind first."""
        names = {failure.kind for failure in self.failures}
        grouped = {
            name: tuple(each for each in self.failures if each.kind == name) for name in names
        }
        return dict(sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0])))


def is_good(answer: ServerAnswer, slo: Slo) -> bool:
    """Whether an answer is within both limits; one of a single token has no time per token."""
    is_prompt = answer.timeline.ttft_s <= slo.ttft_s
    return is_prompt and all(tpot_s <= slo.tpot_s for tpot_s in answer.tpots_s)


def _sent_s(outcome: Outcome) -> float:
    return outcome.timeline.sent_s if isinstance(outcome, ServerAnswer) else outcome.sent_s


def _ended_s(outcome: Outcome) -> float:
    return outcome.timeline.ended_s if isinstance(outcome, ServerAnswer) else outcome.ended_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCourse:
    """A run over time, in bins of equal length from its start."""

    bin_s: float
    running: tuple[float, ...]  # requests under way, the mean of each bin
    tokens_per_s: tuple[float, ...]  # output


def course_of(summary: Summary, *, num_bins: int) -> LoadCourse:
    """The run in bins of time; each chunk counts its request's mean number of tokens."""
    bin_s = summary.duration_s / num_bins or 1.0
    running, tokens = [0.0] * num_bins, [0.0] * num_bins
    for outcome in summary.outcomes:
        sent = (_sent_s(outcome) - summary.start_s) / bin_s
        ended = (_ended_s(outcome) - summary.start_s) / bin_s
        for each in range(int(sent), min(int(ended) + 1, num_bins)):
            running[each] += min(ended, each + 1) - max(sent, each)
    for answer in summary.answers:
        texts_s = answer.timeline.texts_s
        for text_s in texts_s:
            place = min(int((text_s - summary.start_s) / bin_s), num_bins - 1)
            tokens[place] += answer.tokens.output / len(texts_s) / bin_s
    return LoadCourse(bin_s=bin_s, running=tuple(running), tokens_per_s=tuple(tokens))
