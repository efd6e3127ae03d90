"""The sampling of every row, and the parts of a step that its rows use together."""

from collections.abc import Sequence
from dataclasses import replace

from outrider.sampling.sampling_flags import decode_flags, joined_flags, prompt_flags
from outrider.step.shape import SamplingFlags
from outrider.wire.row_sampling import RowSampling
from outrider.wire.scheduled_batch import RowAdmission, ScheduledBatch


class RowSamplings:
    """Owns the sampling of the request in each row.

    Hundreds of rows have few different flags. They are found at admission; a step only
    joins the flags of its rows.
    """

    def __init__(self) -> None:
        self._samplings: dict[int, RowSampling] = {}  # by row
        self._decoding: dict[int, int] = {}  # index into `_kinds`, by row
        self._prompting: dict[int, int] = {}  # likewise, while its prompt runs
        self._kinds: list[SamplingFlags] = []

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Requests get rows."""
        for entry in admissions:
            self._samplings[entry.row] = entry.sampling
            has_adapter = entry.adapter_slot > 0
            for table, flags in (
                (self._decoding, decode_flags(entry.sampling)),
                (self._prompting, prompt_flags(entry.sampling)),
            ):
                table[entry.row] = self._kind_of(replace(flags, adapters=has_adapter))

    def forget(self) -> None:
        """No request has a row any more."""
        for table in (self._samplings, self._decoding, self._prompting):
            table.clear()

    def of(self, batch: ScheduledBatch) -> tuple[RowSampling, ...]:
        """The sampling of every row that runs, in the order of the batch."""
        return tuple([self._samplings[row] for row in batch.rows])

    def flags_of(self, batch: ScheduledBatch) -> SamplingFlags:
        """The parts of sampling that at least one row of the batch uses."""
        kinds = {self._decoding[row] for row in batch.decodes.rows}
        kinds |= {self._prompting[chunk.row] for chunk in batch.chunks}
        return joined_flags([self._kinds[kind] for kind in kinds])

    def _kind_of(self, flags: SamplingFlags) -> int:
        if flags not in self._kinds:
            self._kinds.append(flags)
        return self._kinds.index(flags)
