"""Rows that answer real questions one after another, timed while all of them run."""

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.steps.bench_engines import LoadedEngine
from benchmarks.steps.step_args import SKIPPED
from outrider.engine.engine import Engine
from outrider.errors import CapacityError
from outrider.wire.draft_budget import UNBOUNDED
from outrider.wire.row_sampling import RowSampling
from outrider.wire.submission import Limits, Progress, RequestUpdate, Submission

_SEED = 7
_FEWEST_ANSWERS = 8  # worth of tokens that a case is timed over, however few its rows

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenedQuestions:
    """Prompts as the model reads them, and when their answers end."""

    prompts: tuple[Tokens, ...]
    limits: Limits

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and its answer."""
        return max(map(len, self.prompts)) + self.limits.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenedSpeed:
    """Consecutive steps of rows that are replaced as soon as they end."""

    steps_s: tuple[float, ...]  # wall time from one result to the next
    emitted: int  # tokens of all rows and steps
    rounds: int  # of all rows; a round emits the accepted drafts and one token more
    accepted: int
    context: float  # tokens per row, on average
    occupancy: float  # share of the time in which the device ran a step

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)

    @property
    def tokens_per_s(self) -> float:
        return self.emitted / sum(self.steps_s)

    @property
    def accept_length(self) -> float:
        """Mean tokens per round."""
        return 1.0 + self.accepted / max(self.rounds, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The speed of a case, and the finished answers by question."""

    speed: WidenedSpeed
    answers: dict[int, Tokens]


class AnsweringRows:
    """Owns the running answers; when one ends, the next question takes its row at once."""

    def __init__(self, engine: Engine, questions: WidenedQuestions, *, rows: int) -> None:
        self._engine = engine
        self._questions = questions
        self._numbers = itertools.count()
        self.live: dict[str, list[int]] = {}  # emitted by each
        self._progress: dict[str, Progress] = {}
        self.answers: dict[int, Tokens] = {}
        self.num_begun = 0  # questions whose answers have a token
        self.emitted = self.rounds = self.accepted = 0
        self.length = 0  # tokens of all live rows, prompts included
        for _ in range(rows):
            self._begin_next()

    def step(self) -> None:
        for update in self._engine.step():
            self._receive(update)

    def end(self) -> None:
        """Abort all answers."""
        for name in self.live:
            self._engine.abort(name)
        while self._engine.has_work:
            self._engine.step()

    def _begin_next(self) -> None:
        number = next(self._numbers)
        self._engine.add(
            Submission(
                request_id=str(number),
                prompt=self._prompt(number),
                sampling=RowSampling(seed=_SEED, temperature=0.0),
                limits=self._questions.limits,
                budget=UNBOUNDED,
            )
        )
        self.live[str(number)] = []
        self.length += len(self._prompt(number))

    def _receive(self, update: RequestUpdate) -> None:
        if update.finish == "error":
            raise CapacityError(f"an answer broke off: {update.reason}")
        name, progress = update.request_id, update.progress
        self.num_begun += not self.live[name]
        self.live[name] += update.tokens
        self.emitted += len(update.tokens)
        self.length += len(update.tokens)
        if name in self._progress:
            self.rounds -= self._progress[name].rounds
            self.accepted -= self._progress[name].num_accepted
        self.rounds += progress.rounds
        self.accepted += progress.num_accepted
        self._progress[name] = progress
        if update.finish != "running":
            self._finish(name)

    def _finish(self, name: str) -> None:
        tokens, number = tuple(self.live.pop(name)), int(name)
        del self._progress[name]
        self.length -= len(tokens) + len(self._prompt(number))
        self.answers[number % len(self._questions.prompts)] = tokens
        self._begin_next()

    def _prompt(self, number: int) -> Tokens:
        prompts = self._questions.prompts
        return prompts[number % len(prompts)]


def measure_answers(loaded: LoadedEngine, questions: WidenedQuestions, *, rows: int) -> Answered:
    """Time running rows. The second of two runs counts: its shapes are captured."""
    _answer(loaded, questions, rows=rows)
    return _answer(loaded, questions, rows=rows)


def window_tokens(questions: WidenedQuestions, *, rows: int) -> int:
    """How many tokens a case is timed over: about an answer of every row."""
    return max(rows, _FEWEST_ANSWERS) * questions.limits.max_tokens


def _answer(loaded: LoadedEngine, questions: WidenedQuestions, *, rows: int) -> Answered:
    answering, occupancy = (
        AnsweringRows(loaded.engine, questions, rows=rows),
        loaded.runner.occupancy,
    )
    while answering.num_begun < rows:
        answering.step()
    for _ in range(SKIPPED):
        answering.step()
    before = answering.emitted, answering.rounds, answering.accepted
    goal = answering.emitted + window_tokens(questions, rows=rows)
    occupancy.restart()
    times, lengths = [time.perf_counter()], []
    while answering.emitted < goal:
        answering.step()
        times.append(time.perf_counter())
        lengths.append(answering.length)
    share = occupancy.share
    answering.end()
    emitted, rounds, accepted = answering.emitted, answering.rounds, answering.accepted
    speed = WidenedSpeed(
        steps_s=tuple(after - start for start, after in itertools.pairwise(times)),
        emitted=emitted - before[0],
        rounds=rounds - before[1],
        accepted=accepted - before[2],
        context=statistics.mean(lengths) / rows,
        occupancy=share,
    )
    return Answered(speed=speed, answers=answering.answers)


def count_equal(one: dict[int, Tokens], other: dict[int, Tokens]) -> tuple[int, int]:
    """How many questions got the same answer, and how many were answered by both."""
    both: Sequence[int] = [number for number in one if number in other]
    return sum(one[number] == other[number] for number in both), len(both)
