"""The sampling law of every row, and which parts of the law the rows of a step need together."""

from collections.abc import Sequence

from outrider.sampling.sampling_flags import decode_need, joined, prompt_need
from outrider.step.shape import Warps
from outrider.wire.row_sampling import RowSampling
from outrider.wire.scheduled_batch import RowAdmission, ScheduledBatch


class LawBook:
    """Owns the law of each row's present owner.

    Rows by the hundred have few kinds of needs. What a kind needs is found at admission, and a step
    only asks which kinds are in it.
    """

    def __init__(self) -> None:
        self._laws: dict[int, RowSampling] = {}  # by row
        self._decoding: dict[int, int] = {}  # kind of need, by row
        self._prompting: dict[int, int] = {}  # likewise, while its prompt runs
        self._kinds: list[Warps] = []

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Rows get new owners."""
        for entry in admissions:
            self._laws[entry.row] = entry.sampling
            self._decoding[entry.row] = self._kind_of(decode_need(entry.sampling))
            self._prompting[entry.row] = self._kind_of(prompt_need(entry.sampling))

    def forget(self) -> None:
        """Nobody has a row any more."""
        for table in (self._laws, self._decoding, self._prompting):
            table.clear()

    def of(self, batch: ScheduledBatch) -> tuple[RowSampling, ...]:
        """The law of every row that runs, in the order of the batch."""
        return tuple([self._laws[row] for row in batch.rows])

    def warps_of(self, batch: ScheduledBatch) -> Warps:
        """The parts that at least one of its rows needs."""
        kinds = {self._decoding[row] for row in batch.decodes.rows}
        kinds |= {self._prompting[chunk.row] for chunk in batch.chunks}
        return joined([self._kinds[kind] for kind in kinds])

    def _kind_of(self, need: Warps) -> int:
        if need not in self._kinds:
            self._kinds.append(need)
        return self._kinds.index(need)
