"""A step while it is being decided: entries can still be taken back until it is frozen."""

from dataclasses import dataclass

from outrider.engine.request import Placement, Request
from outrider.wire.batch import (
    PageGrant,
    RowAdmission,
    ScheduledBatch,
    ScheduledChunk,
    ScheduledDecode,
)
from outrider.wire.sampling import Penalties


@dataclass(frozen=True, slots=True)
class Expected:
    """Whose result a row of the step will be, and the most tokens it can bring."""

    request: Request
    placement: Placement
    most: int
    is_round: bool  # a verify round, as opposed to the end of a prompt


class StepDecision:
    """Collects the entries of one step by request."""

    def __init__(self, *, needs_text: bool) -> None:
        self._needs_text = needs_text  # the drafter's wish
        self._admissions: dict[Request, RowAdmission] = {}
        self._grants: dict[Placement, list[PageGrant]] = {}
        self._decodes: dict[Request, tuple[Expected, ScheduledDecode]] = {}
        self._chunks: dict[Request, tuple[Expected, ScheduledChunk]] = {}

    @property
    def num_decodes(self) -> int:
        return len(self._decodes)

    @property
    def num_chunks(self) -> int:
        return len(self._chunks)

    def admit(self, request: Request, placement: Placement) -> None:
        """A request gets its row; all pages of its lease go into the row's empty page table."""
        submission = request.submission
        needs_text = self._needs_text or submission.sampling.penalties != Penalties()
        num_prompt = len(submission.prompt)
        self._admissions[request] = RowAdmission(
            row=placement.row,
            sampling=submission.sampling,
            prompt=submission.prompt if needs_text else (),
            output=tuple(request.tokens[num_prompt:])
            if needs_text or submission.sampling.grammar.is_asked
            else (),
        )
        self.grant(placement, tuple(placement.lease.pages))

    def grant(self, placement: Placement, pages: tuple[int, ...]) -> None:
        """Pages just appended to a lease go to the end of its row's page table."""
        if pages:
            first = len(placement.lease.pages) - len(pages)
            grant = PageGrant(row=placement.row, first=first, pages=pages)
            self._grants.setdefault(placement, []).append(grant)

    def decode(self, expected: Expected, decode: ScheduledDecode) -> None:
        self._decodes[expected.request] = (expected, decode)

    def chunk(self, expected: Expected, chunk: ScheduledChunk) -> None:
        self._chunks[expected.request] = (expected, chunk)

    def remove(self, request: Request, placement: Placement) -> None:
        """Take back everything about a request that gives way before the step is frozen."""
        self._admissions.pop(request, None)
        self._grants.pop(placement, None)
        self._decodes.pop(request, None)
        self._chunks.pop(request, None)

    def freeze(self, step: int) -> tuple[ScheduledBatch, list[Expected]]:
        """The batch, and the owner of each of its rows in order."""
        entries = [*self._decodes.values(), *self._chunks.values()]
        batch = ScheduledBatch(
            step=step,
            admissions=tuple(self._admissions.values()),
            grants=tuple(grant for grants in self._grants.values() for grant in grants),
            chunks=tuple(chunk for _, chunk in self._chunks.values()),
            decodes=tuple(decode for _, decode in self._decodes.values()),
        )
        return batch, [expected for expected, _ in entries]
