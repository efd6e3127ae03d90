"""Goes from engine to runtime: one step as the scheduler decided it. Lengths are upper bounds."""

from dataclasses import dataclass

from outrider.wire.adapter import AdapterLoad
from outrider.wire.draft_budget import Budget
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.image_span import ImageSpan
from outrider.wire.row_sampling import RowSampling

NO_OWNER = 0  # of a row that drafts from its own text alone


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAdmission:
    """A request gets a row of the device tables. Penalties and some drafters read its text."""

    row: int
    sampling: RowSampling
    prompt: tuple[int, ...]  # empty unless a penalty or the drafter needs it
    output: tuple[int, ...]  # emitted before a preemption; for penalties, drafter or grammar
    embedded: tuple[tuple[int, int], ...] = ()  # ranges of the prompt that are no tokens
    arrived: str = ""  # the transfer that brought its row state from another engine
    adapter_slot: int = 0  # of the adapter that it runs through; 0 for none
    shift: int = 0  # of the rotary positions after its prompt, by the images in it
    owner: int = NO_OWNER  # whose finished texts its drafts may come from
    snapshot: int = 0  # the slot with the row state of its cached prefix; 0 for none

    @property
    def seen_tokens(self) -> tuple[int, ...]:
        """The prompt without placeholders of embeddings, in any order."""
        if not self.embedded:
            return self.prompt
        hidden = {at for first, stop in self.embedded for at in range(first, stop)}
        return tuple(token for at, token in enumerate(self.prompt) if at not in hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedText:
    """The answer of a request that ended, after the last tokens of its prompt."""

    owner: int  # rows of the same owner may draft from it
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageGrant:
    """Pages written to a page table of a row from index `first` on."""

    row: int
    first: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowSnapshot:
    """The state of a row is copied into a slot after the step."""

    row: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledChunk:
    """A chunk of a prompt: query tokens that run after `start` cached tokens."""

    row: int
    start: int
    tokens: tuple[int, ...]
    follower: int  # the next token of the prompt, or -1 at its end, where the row emits a token
    embeds: tuple[EmbeddedSpan, ...] = ()  # in place of tokens; their positions are in the chunk
    images: tuple[ImageSpan, ...] = ()  # likewise
    shift: int = 0  # of rotary positions, by images that end before the chunk

    @property
    def spans(self) -> tuple[EmbeddedSpan | ImageSpan, ...]:
        """All that stands in place of tokens."""
        return (*self.embeds, *self.images)

    @property
    def has_axes(self) -> bool:
        """Whether rotary positions of its tokens are not their positions."""
        return bool(self.shift) or any(image.pixels.has_axes for image in self.images)

    @property
    def is_last(self) -> bool:
        return self.follower < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledDecodes:
    """Rows that continue from their own last tokens, which only the device knows.

    Columns of one length. With hundreds of rows, one record per row would take most of the step.
    """

    rows: tuple[int, ...]
    bounds: tuple[int, ...]  # at most this many tokens of each are cached before the step
    budgets: tuple[Budget, ...]
    most_drafts: int  # of all rows together: the device gives them to the best drafts

    def __len__(self) -> int:
        return len(self.rows)


NO_DECODES = ScheduledDecodes(rows=(), bounds=(), budgets=(), most_drafts=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledBatch:
    """One step: first the table updates, then the rows that run."""

    step: int
    admissions: tuple[RowAdmission, ...]
    grants: tuple[PageGrant, ...]
    chunks: tuple[ScheduledChunk, ...]
    decodes: ScheduledDecodes
    finished: tuple[FinishedText, ...] = ()  # since the step before, if the drafter reads them
    adapter_loads: tuple[AdapterLoad, ...] = ()
    snapshots: tuple[RowSnapshot, ...] = ()
    window_grants: tuple[PageGrant, ...] = ()  # into the page tables of layers with a window

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows that run, in the order of the results: decodes, then chunks."""
        return self.decodes.rows + tuple(chunk.row for chunk in self.chunks)

    @property
    def is_empty(self) -> bool:
        return not self.chunks and not self.decodes.rows


EMPTY_BATCH = ScheduledBatch(step=0, admissions=(), grants=(), chunks=(), decodes=NO_DECODES)
