"""A step in flight. Its outcome is set aside, and read on the host when asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from outrider.plan.shape import StepShape
from outrider.plan.tree import Verdict
from outrider.runtime.program import StepOutput
from outrider.sampling.logprobs import LogprobTensors
from outrider.wire.batch import ScheduledBatch
from outrider.wire.result import RowResult, StepResult, TokenLogprobs
from outrider.wire.sampling import LogprobsAsked

Tensors = TypeVar("Tensors", Verdict, LogprobTensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Emission:
    """What one row of the batch emitted, and where its log-probabilities stand."""

    tokens: list[int]
    places: list[int]  # of the query tokens that chose them, among all sampled ones
    drafted: int


class Pending:
    """Owns copies of one step's output, so that the next step may overwrite the originals."""

    def __init__(
        self,
        batch: ScheduledBatch,
        shape: StepShape,
        asked: Sequence[LogprobsAsked],
        output: StepOutput,
        *,
        has_drafter_failed: bool,
    ) -> None:
        self._batch = batch
        self._shape = shape
        self._asked = asked  # per row of the batch: decodes, then chunks
        self._verdict = _copy(output.verdict)
        self._chunk_choice = output.chunk_choice.clone()
        self._logprobs = _copy(output.logprobs)
        self._has_drafter_failed = has_drafter_failed

    def wait(self) -> StepResult:
        """The tokens of every row, in the order of the batch."""
        emissions = [*self._decoded(), *self._prefilled()]
        logprobs = self._read_logprobs()
        rows = tuple(
            RowResult(
                row=row,
                tokens=tuple(emission.tokens),
                logprobs=tuple(
                    _cut(logprobs[place], asked.top) for place in emission.places if _wants(asked)
                ),
                drafted=emission.drafted,
            )
            for row, asked, emission in zip(self._batch.rows, self._asked, emissions, strict=True)
        )
        return StepResult(
            step=self._batch.step, rows=rows, has_drafter_failed=self._has_drafter_failed
        )

    def _decoded(self) -> list[_Emission]:
        verdict, nodes = self._verdict, self._shape.nodes
        columns = (verdict.kept, verdict.path, verdict.emitted, verdict.drafted)
        read = zip(*(column.tolist() for column in columns), strict=True)
        rows = list(read)[: len(self._batch.decodes)]  # the rest is padding
        return [
            _Emission(
                tokens=emitted[: kept + 1],
                places=[row * nodes + node for node in path[: kept + 1]],
                drafted=drafted,
            )
            for row, (kept, path, emitted, drafted) in enumerate(rows)
        ]

    def _prefilled(self) -> list[_Emission]:
        choice, first = self._chunk_choice.tolist(), self._shape.num_uniform
        return [
            _Emission(tokens=[choice[i]], places=[first + i], drafted=0)
            if chunk.is_last
            else _Emission(tokens=[], places=[], drafted=0)
            for i, chunk in enumerate(self._batch.chunks)
        ]

    def _read_logprobs(self) -> list[TokenLogprobs]:
        """Of every sampled query token; empty when nobody asked."""
        taken = self._logprobs
        columns = (taken.chosen, taken.rank, taken.top_ids, taken.top_values)
        return [
            TokenLogprobs(chosen=chosen, rank=rank, top=tuple(zip(ids, values, strict=True)))
            for chosen, rank, ids, values in zip(*(c.tolist() for c in columns), strict=True)
        ]


def _wants(asked: LogprobsAsked) -> bool:
    return asked.chosen or asked.top > 0


def _cut(logprobs: TokenLogprobs, top: int) -> TokenLogprobs:
    """As many of the most likely tokens as this row asked for; another may have asked for more."""
    return TokenLogprobs(chosen=logprobs.chosen, rank=logprobs.rank, top=logprobs.top[:top])


def _copy(record: Tensors) -> Tensors:
    return type(record)(**{f.name: getattr(record, f.name).clone() for f in fields(record)})
