"""The sampling law of every row, and which parts of the law the rows of a step need together."""

from collections.abc import Sequence

from outrider.sampling.sampling_flags import decode_flags, joined_flags, prompt_flags
from outrider.step.shape import SamplingFlags
from outrider.wire.row_sampling import RowSampling
from outrider.wire.scheduled_batch import RowAdmission, ScheduledBatch


class RowSamplings:
    """Owns the law of each row's present owner.

    Rows by the hundred have few kinds of needs. What a kind needs is found at admission, and a step
    only asks which kinds are in it.
    """

    def __init__(self) -> None:
        self._samplings: dict[int, RowSampling] = {}  # by row
        self._decoding: dict[int, int] = {}  # kind of need, by row
        self._prompting: dict[int, int] = {}  # likewise, while its prompt runs
        self._kinds: list[SamplingFlags] = []

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Rows get new owners."""
        for entry in admissions:
            self._samplings[entry.row] = entry.sampling
            self._decoding[entry.row] = self._kind_of(decode_flags(entry.sampling))
            self._prompting[entry.row] = self._kind_of(prompt_flags(entry.sampling))

    def forget(self) -> None:
        """Nobody has a row any more."""
        for table in (self._samplings, self._decoding, self._prompting):
            table.clear()

    def of(self, batch: ScheduledBatch) -> tuple[RowSampling, ...]:
        """The law of every row that runs, in the order of the batch."""
        return tuple([self._samplings[row] for row in batch.rows])

    def flags_of(self, batch: ScheduledBatch) -> SamplingFlags:
        """The parts that at least one of its rows needs."""
        kinds = {self._decoding[row] for row in batch.decodes.rows}
        kinds |= {self._prompting[chunk.row] for chunk in batch.chunks}
        return joined_flags([self._kinds[kind] for kind in kinds])

    def _kind_of(self, flags: SamplingFlags) -> int:
        if flags not in self._kinds:
            self._kinds.append(flags)
        return self._kinds.index(flags)
