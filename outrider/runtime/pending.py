"""A step in flight. Its result is copied to the host in the background and read when asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

from outrider.plan.tree import Verdict
from outrider.runtime.program import StepOutput
from outrider.sampling.logprobs import LogprobTensors
from outrider.wire.batch import ScheduledBatch
from outrider.wire.result import RowResult, StepResult, TokenLogprobs
from outrider.wire.sampling import LogprobsAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copies:
    """The output on the host; plain lists once, instead of many small reads."""

    path: list[list[int]]
    kept: list[int]
    emitted: list[list[int]]
    chunk_choice: list[int]
    drafted: list[int]


class Pending:
    """Owns copies of one step's output, so that the next step may overwrite the originals."""

    def __init__(
        self, batch: ScheduledBatch, asked: Sequence[LogprobsAsked], output: StepOutput
    ) -> None:
        self._batch = batch
        self._asked = asked  # per row of the batch: decodes, then chunks
        self._verdict = Verdict(**_cloned(output.verdict))
        self._chunk_choice = output.chunk_choice.clone()
        self._logprobs = LogprobTensors(**_cloned(output.logprobs))

    def wait(self) -> StepResult:
        """The tokens of every row, in the order of the batch."""
        batch, copies = self._batch, self._read()
        nodes = self._verdict.path.shape[1]
        num_uniform = self._verdict.path.numel()
        rows = []
        for i, decode in enumerate(batch.decodes):
            num = copies.kept[i] + 1
            places = [i * nodes + node for node in copies.path[i][:num]]
            row = self._row(i, decode.row, copies.emitted[i][:num], places)
            rows.append(replace(row, drafted=copies.drafted[i]))
        for i, chunk in enumerate(batch.chunks):
            num = 1 if chunk.is_last else 0
            tokens, places = copies.chunk_choice[i : i + num], [num_uniform + i][:num]
            rows.append(self._row(len(batch.decodes) + i, chunk.row, tokens, places))
        return StepResult(step=batch.step, rows=tuple(rows))

    def _read(self) -> _Copies:
        return _Copies(
            path=self._verdict.path.tolist(),
            kept=self._verdict.kept.tolist(),
            emitted=self._verdict.emitted.tolist(),
            chunk_choice=self._chunk_choice.tolist(),
            drafted=self._verdict.drafted.tolist(),
        )

    def _row(self, index: int, row: int, tokens: list[int], places: list[int]) -> RowResult:
        asked = self._asked[index]
        wants = asked.chosen or asked.top > 0
        logprobs = tuple(self._at(place, asked.top) for place in places) if wants else ()
        return RowResult(row=row, tokens=tuple(tokens), logprobs=logprobs, drafted=0)

    def _at(self, place: int, top: int) -> TokenLogprobs:
        taken = self._logprobs
        ids, values = taken.top_ids[place, :top].tolist(), taken.top_values[place, :top].tolist()
        return TokenLogprobs(
            chosen=float(taken.chosen[place]),
            rank=int(taken.rank[place]),
            top=tuple(zip(ids, values, strict=True)),
        )


def _cloned(record: Verdict | LogprobTensors) -> dict[str, torch.Tensor]:
    return {field.name: getattr(record, field.name).clone() for field in fields(record)}
