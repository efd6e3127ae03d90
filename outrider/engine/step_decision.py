"""A step while it is decided. Entries can be removed until it is frozen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from outrider.engine.draft_policy import StepLoad
from outrider.engine.request import Placement, Request
from outrider.wire.adapter import AdapterLoad
from outrider.wire.draft_budget import Budget
from outrider.wire.image_span import shift_before
from outrider.wire.row_sampling import Penalties
from outrider.wire.scheduled_batch import (
    PageGrant,
    RowAdmission,
    RowSnapshot,
    ScheduledBatch,
    ScheduledChunk,
    ScheduledDecodes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStep:
    """Which placements get the results of a step, by columns in the order of the batch."""

    placements: tuple[Placement, ...]
    most: tuple[int, ...]  # most tokens that each can emit
    num_rounds: int  # the first rows are verify rounds, the others prompt chunks
    offered: tuple[Placement, ...]  # whose prompts are complete, for another engine to decode
    saved_rounds: Mapping[int, int]  # slots of row states after verify rounds, by place


def running_requests(
    steps: Sequence[ExpectedStep], requests: Mapping[str, Request]
) -> list[Request]:
    """The requests of these steps that have not ended since; each once. `requests` have not."""
    found = dict.fromkeys(placement.request for step in steps for placement in step.placements)
    return [each for each in found if requests.get(each.request_id) is each]


_NO_COLUMNS: tuple[tuple[()], ...] = ((), (), (), ())


class StepDecision:
    """Collects the entries of one step: decodes in order of precedence, the rest by placement."""

    def __init__(self, *, needs_text: bool) -> None:
        self._needs_text = needs_text  # the drafter reads the text of new rows
        self._admissions: dict[Request, RowAdmission] = {}
        self._grants: dict[Placement, list[PageGrant]] = {}
        self._window_grants: dict[Placement, list[PageGrant]] = {}
        self._decodes: list[tuple[Placement, int, Budget, int]] = []  # the arguments of `decode`
        self._chunks: dict[Placement, ScheduledChunk] = {}
        self._saves: dict[Placement, int] = {}  # slots for the row state after the step
        self.drafts_per_row = 0  # on average, at most
        # They stay if the row is preempted: the adapter has its slot now.
        self.adapter_loads: tuple[AdapterLoad, ...] = ()

    @property
    def num_decodes(self) -> int:
        return len(self._decodes)

    @property
    def load(self) -> StepLoad:
        """Query tokens of rows are their last ones, and the drafts that are verified."""
        num_rows = len(self._decodes)
        num_drafts = sum(budget.nodes - 1 for _, _, budget, _ in self._decodes)
        return StepLoad(
            num_rows=num_rows,
            num_query=num_rows + min(num_drafts, self.drafts_per_row * num_rows),
            num_prompt=sum(len(chunk.tokens) for chunk in self._chunks.values()),
        )

    def admit(
        self, request: Request, placement: Placement, *, arrived: str, owner: int, adapter_slot: int
    ) -> None:
        """A request gets its row; all pages of its lease go into the row's empty page table."""
        submission = request.submission
        needs_text = self._needs_text or submission.sampling.penalties != Penalties()
        sampling, num_prompt = submission.sampling, len(submission.prompt)
        needs_output = (
            needs_text or sampling.grammar.is_wanted or sampling.restrictions.depends_on_output
        )
        if sampling.prediction and not self._needs_text:  # a drafter that does not read it
            sampling = replace(sampling, prediction=())
        self._admissions[request] = RowAdmission(
            row=placement.row,
            sampling=sampling,
            prompt=submission.prompt if needs_text else (),
            embedded=tuple([(span.first, span.stop) for span in submission.spans]),
            output=tuple(request.tokens[num_prompt:]) if needs_output else (),
            arrived=arrived,
            snapshot=0 if arrived else placement.lease.snapshots.restored,
            owner=owner,
            adapter_slot=adapter_slot,
            shift=shift_before(submission.images, num_prompt),
        )
        self.grant(placement, tuple(placement.lease.pages))

    def grant(self, placement: Placement, pages: tuple[int, ...]) -> None:
        """Pages just appended to a lease go to the end of its row's page table."""
        if pages:
            first = len(placement.lease.pages) - len(pages)
            grant = PageGrant(row=placement.row, first=first, pages=pages)
            self._grants.setdefault(placement, []).append(grant)

    def grant_window(self, placement: Placement, pages: tuple[int, ...]) -> None:
        """Window pages that a lease has just got go to the same places of its window table."""
        if pages:
            first = placement.lease.window.stop - len(pages)
            grant = PageGrant(row=placement.row, first=first, pages=pages)
            self._window_grants.setdefault(placement, []).append(grant)

    def decode(self, placement: Placement, budget: Budget, *, most: int) -> None:
        """A row runs one round, which can emit up to `most` tokens."""
        self._decodes.append((placement, placement.bound, budget, most))

    def chunk(self, placement: Placement, chunk: ScheduledChunk) -> None:
        self._chunks[placement] = chunk

    def has_chunk(self, placement: Placement) -> bool:
        return placement in self._chunks

    def save(self, placement: Placement, slot: int) -> None:
        """The state of a row is copied after the step; slot 0 means that it is not."""
        if slot:
            self._saves[placement] = slot

    def remove(self, placement: Placement) -> None:
        """Remove everything about a request that is preempted before the step is frozen."""
        self._admissions.pop(placement.request, None)
        self._grants.pop(placement, None)
        self._window_grants.pop(placement, None)
        self._decodes = [entry for entry in self._decodes if entry[0] is not placement]
        self._chunks.pop(placement, None)
        self._saves.pop(placement, None)

    def freeze(self, step: int) -> tuple[ScheduledBatch, ExpectedStep]:
        """The batch, and the results to expect of its rows."""
        chunks = tuple(self._chunks.values())
        placements, bounds, budgets, most = tuple(zip(*self._decodes, strict=True)) or _NO_COLUMNS
        batch = ScheduledBatch(
            step=step,
            admissions=tuple(self._admissions.values()),
            grants=tuple(grant for grants in self._grants.values() for grant in grants),
            chunks=chunks,
            decodes=ScheduledDecodes(
                rows=tuple([placement.row for placement in placements]),
                bounds=bounds,
                budgets=budgets,
                most_drafts=self.drafts_per_row * len(placements),
            ),
            adapter_loads=self.adapter_loads,
            snapshots=tuple(RowSnapshot(each.row, slot) for each, slot in self._saves.items()),
            window_grants=tuple(
                grant for grants in self._window_grants.values() for grant in grants
            ),
        )
        expected = ExpectedStep(
            placements=(*placements, *self._chunks),
            most=(*most, *[int(chunk.is_last) for chunk in chunks]),
            num_rounds=len(placements),
            offered=tuple(
                placement
                for placement, chunk in self._chunks.items()
                if placement.request.is_offered and placement.bound == placement.goal
                if not chunk.is_last
            ),
            saved_rounds=self._saved_rounds(placements),
        )
        return batch, expected

    def _saved_rounds(self, placements: tuple[Placement, ...]) -> Mapping[int, int]:
        if not self._saves:  # the usual case
            return {}
        places = enumerate(placements)
        return {place: self._saves[each] for place, each in places if each in self._saves}
