"""A step in flight. Its outcome travels to the host by itself, and is read when asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outrider.plan.shape import StepShape
from outrider.runtime.lane import Mark
from outrider.runtime.occupancy import Occupancy
from outrider.runtime.outbox import Packed, Unpacked, UnpackedLogprobs, UnpackedTrees, unpack
from outrider.runtime.watchdog import Watchdog
from outrider.wire.batch import ScheduledBatch
from outrider.wire.result import (
    NO_SCORES,
    PromptScores,
    RoundTrace,
    RowResult,
    StepResult,
    TokenLogprobs,
)
from outrider.wire.sampling import LogprobsAsked, RowSampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Where a step began and ended on the device, and its output on the way home."""

    start: Mark
    end: Mark
    landed: Mark
    output: Packed
    has_drafter_failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Emission:
    """What one row of the batch emitted, and where its log-probabilities stand."""

    tokens: tuple[int, ...]
    places: tuple[int, ...]  # of the query tokens that chose them, where somebody asks
    drafted: int
    rounds: tuple[RoundTrace, ...]  # where the row asks


_NOTHING = _Emission(tokens=(), places=(), drafted=0, rounds=())  # inside a prompt


class Pending:
    """Owns the host copy of one step's output."""

    def __init__(
        self,
        batch: ScheduledBatch,
        shape: StepShape,
        laws: Sequence[RowSampling],
        flight: Flight,
        occupancy: Occupancy,
        watchdog: Watchdog,
        errors: Mapping[int, str],
    ) -> None:
        self._batch = batch
        self._shape = shape
        self._laws = laws  # per row of the batch: decodes, then chunks
        self._flight = flight
        self._occupancy = occupancy
        self._watchdog = watchdog
        self._errors = errors  # by row, of those that cannot go on

    def wait(self) -> StepResult:
        """The tokens of every row, in the order of the batch."""
        self._land()
        busy_s = self._occupancy.note(self._flight.start, self._flight.end)
        read = unpack(self._flight.output, self._shape)
        emissions = [*self._decoded(read), *self._prefilled(read)]
        logprobs = _list_logprobs(read.logprobs)
        reports = self._reports(logprobs, emissions)
        scores = [NO_SCORES] * len(self._batch.decodes) + self._scores(logprobs)
        rows = tuple(
            RowResult(
                row=row,
                tokens=emission.tokens,
                logprobs=report,
                drafted=emission.drafted,
                rounds=emission.rounds,
                error=self._errors.get(row, ""),
                scores=scored,
            )
            for row, emission, report, scored in zip(
                self._batch.rows, emissions, reports, scores, strict=True
            )
        )
        return StepResult(
            step=self._batch.step,
            rows=rows,
            busy_s=busy_s,
            has_drafter_failed=self._flight.has_drafter_failed,
        )

    def _land(self) -> None:
        self._watchdog.begin(self._batch.step, self._shape)
        try:
            self._flight.landed.wait()
        finally:
            self._watchdog.end()

    def _reports(
        self, logprobs: list[TokenLogprobs], emissions: list[_Emission]
    ) -> Sequence[tuple[TokenLogprobs, ...]]:
        """The log-probabilities that each row asked for."""
        if not self._shape.warps.logprobs:
            return [()] * len(emissions)
        return [
            tuple(
                _cut(logprobs[place], law.logprobs, law.logprobs.top) for place in emission.places
            )
            if _wants(law.logprobs)
            else ()
            for law, emission in zip(self._laws, emissions, strict=True)
        ]

    def _scores(self, logprobs: list[TokenLogprobs]) -> list[PromptScores]:
        """What each chunk that asks tells of its own tokens and of the one that follows it."""
        place, scores = self._shape.num_reported[0], []  # chunk tokens come after those sampled
        laws = self._laws[len(self._batch.decodes) :]
        for chunk, law in zip(self._batch.chunks, laws, strict=True):
            asked, count = law.logprobs.prompt, len(chunk.tokens)
            skipped = max(asked.first - 1 - chunk.start, 0)  # a token is scored by the one before
            scored = logprobs[place + skipped : place + count - chunk.is_last]
            cut = tuple(_cut(each, law.logprobs, asked.top) for each in scored)
            first = chunk.start + 1 + skipped
            scores.append(PromptScores(first=first, logprobs=cut) if asked.is_asked else NO_SCORES)
            place += count
        return scores

    def _decoded(self, read: Unpacked) -> list[_Emission]:
        nodes, wanted = self._shape.nodes, self._shape.warps.logprobs
        columns = zip(read.kept, read.path, read.emitted, read.drafted, strict=True)
        rows = list(columns)[: len(self._batch.decodes)]  # the rest is padding
        return [
            _Emission(
                tokens=tuple(emitted[: kept + 1]),
                places=tuple(row * nodes + node for node in path[: kept + 1]) if wanted else (),
                drafted=drafted,
                rounds=_round_of(read.trees, row, path[: kept + 1], emitted[: kept + 1])
                if self._laws[row].trace
                else (),
            )
            for row, (kept, path, emitted, drafted) in enumerate(rows)
        ]

    def _prefilled(self, read: Unpacked) -> list[_Emission]:
        choice, first = read.chunk_choice, self._shape.num_uniform
        laws = self._laws[len(self._batch.decodes) :]
        return [
            _Emission(
                tokens=(choice[i],),
                places=(first + i,),
                drafted=0,
                rounds=_first_round(chunk.tokens[-1], choice[i]) if laws[i].trace else (),
            )
            if chunk.is_last
            else _NOTHING
            for i, chunk in enumerate(self._batch.chunks)
        ]


def _round_of(
    trees: UnpackedTrees, row: int, path: list[int], emitted: list[int]
) -> tuple[RoundTrace, ...]:
    tokens = [token for token in trees.tokens[row] if token >= 0]  # absent nodes are the last
    parents = trees.parents[row][: len(tokens)]
    return (
        RoundTrace(
            tokens=tuple(tokens), parents=tuple(parents), path=tuple(path), emitted=tuple(emitted)
        ),
    )


def _first_round(last: int, chosen: int) -> tuple[RoundTrace, ...]:
    """The step that ran a prompt's last token: nothing was drafted after it."""
    return (RoundTrace(tokens=(last,), parents=(-1,), path=(0,), emitted=(chosen,)),)


def _list_logprobs(read: UnpackedLogprobs) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(
            chosen=chosen,
            rank=rank,
            top=tuple(zip(ids, values, strict=True)),
            named=tuple(named),
        )
        for chosen, rank, ids, values, named in zip(
            read.chosen, read.rank, read.top_ids, read.top_values, read.named_values, strict=True
        )
    ]


def _wants(asked: LogprobsAsked) -> bool:
    return asked.chosen or asked.top > 0


def _cut(logprobs: TokenLogprobs, asked: LogprobsAsked, top: int) -> TokenLogprobs:
    """As many tokens beside the chosen one as this row asked for; another may have asked more."""
    named = logprobs.named[: len(asked.named)]
    return replace(logprobs, top=logprobs.top[:top], named=named)
