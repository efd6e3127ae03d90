"""A runner on paper: it obeys ScheduledBatch to the letter, with a hash for a model.

Every slot remembers which token was written there. A row's next token is a hash of the history read
back through its page table, so a page that is lost, shared wrongly or overwritten changes the text.
With row state, a row must also hold a state of exactly the history that it continues.
With a sliding window, or attention chunks, what a query sees is also read through the window table.
"""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.config.settings import HostSettings
from outrider.wire.draft_budget import Budget
from outrider.wire.engine_stats import StepCounts
from outrider.wire.row_sampling import RowSampling
from outrider.wire.runner_facts import DraftFacts, MemoryFacts, RunnerFacts, SnapshotFacts
from outrider.wire.scheduled_batch import ScheduledBatch
from outrider.wire.step_result import StepResult
from outrider.wire.submission import Limits, Submission
from outrider.wire.window_facts import Window, WindowFacts

VOCAB = 50


def next_token(history: list[int]) -> int:
    """The paper model: one token from the whole history."""
    return zlib.crc32(bytes(history)) % VOCAB


def expected_output(submission: Submission, max_context: int) -> list[int]:
    """What a request must answer, computed without any engine."""
    tokens = list(submission.prompt)
    limits = submission.limits
    while True:
        tokens.append(next_token(tokens))
        num_output = len(tokens) - len(submission.prompt)
        if tokens[-1] in limits.stop_ids or num_output >= limits.max_tokens:
            return tokens[len(submission.prompt) :]
        if len(tokens) >= max_context:
            return tokens[len(submission.prompt) :]


@dataclass
class PaperResult:
    result: StepResult

    def wait(self) -> StepResult:
        return self.result


@dataclass(frozen=True)
class PaperState:
    """The state of a row: it can go on after any length from `first` to the end of its tokens."""

    first: int = 0
    tokens: tuple[int, ...] = ()


@dataclass
class PaperRunner:
    """A device that is always done; it accepts a random number of drafts."""

    facts: RunnerFacts
    rng: random.Random
    slots: dict[int, int] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    window_slots: dict[int, int] = field(default_factory=dict)
    window_tables: dict[int, dict[int, int]] = field(default_factory=dict)  # pages by place
    lengths: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    states: dict[int, PaperState] = field(default_factory=dict)  # by row
    snapshots: dict[int, PaperState] = field(default_factory=dict)  # by slot
    num_steps: int = 0
    widest_step: int = 0
    num_drafts: int = 0
    seconds: Callable[[int], float] = lambda width: 0.0  # of a step of so many query tokens

    def submit(self, batch: ScheduledBatch) -> PaperResult:
        self.num_steps += 1
        self._update_tables(batch)
        decodes = batch.decodes
        width = sum(len(c.tokens) for c in batch.chunks) + sum(b.nodes for b in decodes.budgets)
        self.widest_step = max(self.widest_step, width)
        self.num_drafts += sum(budget.nodes - 1 for budget in decodes.budgets)
        columns = zip(decodes.rows, decodes.bounds, decodes.budgets, strict=True)
        tokens = [self._decode(row, bound, budget.nodes) for row, bound, budget in columns]
        tokens += [self._chunk(entry) for entry in batch.chunks]
        for each in batch.snapshots:
            assert 1 <= each.slot <= self.facts.snapshots.num
            self.snapshots[each.slot] = self.states[each.row]
        return PaperResult(
            StepResult(
                step=batch.step,
                tokens=tokens,
                drafted=[budget.nodes - 1 for budget in decodes.budgets] + [0] * len(batch.chunks),
                details={},
                busy_s=self.seconds(width),
                has_drafter_failed=False,
            )
        )

    @property
    def counts(self) -> StepCounts:
        return StepCounts(steps=self.num_steps, eager=self.num_steps, unrecordable=0)

    def restart(self) -> None:
        """Tokens stay where they were written, so that a wrong read would find them."""
        self.tables.clear()
        self.window_tables.clear()
        self.lengths.clear()
        self.last.clear()

    def _update_tables(self, batch: ScheduledBatch) -> None:
        for admission in batch.admissions:
            assert 1 <= admission.row <= self.facts.host.max_rows
            self.tables[admission.row] = []
            self.window_tables[admission.row] = {}
            self.states[admission.row] = PaperState()
            if admission.snapshot:
                self.states[admission.row] = self.snapshots[admission.snapshot]
        for grant in batch.grants:
            table = self.tables[grant.row]
            assert grant.first == len(table), "grants append"
            assert 0 not in grant.pages, "page 0 belongs to no request"
            table.extend(grant.pages)
        for grant in batch.window_grants:
            assert all(1 <= page <= self._windows.num_pages for page in grant.pages)
            self.window_tables[grant.row].update(enumerate(grant.pages, start=grant.first))

    @property
    def _windows(self) -> WindowFacts:
        return self.facts.memory.windows

    def _write(self, row: int, position: int, token: int) -> None:
        self.slots[self._slot(row, position)] = token
        if self._windows.window.tokens:
            self.window_slots[self._window_slot(row, position)] = token

    def _window_slot(self, row: int, position: int) -> int:
        page_size = self.facts.host.page_size
        return self.window_tables[row][position // page_size] * page_size + position % page_size

    def _check_window(self, row: int, queries: range) -> None:
        """Layers with a window see the newest tokens before each query."""
        tokens, is_chunk = self._windows.window.tokens, self._windows.window.is_chunk
        if not tokens:
            return
        start = queries.start
        oldest = start - start % tokens if is_chunk else max(start - tokens + 1, 0)
        for position in range(oldest, queries.stop):
            found = self.window_slots[self._window_slot(row, position)]
            assert found == self.slots[self._slot(row, position)], "a window page was lost"

    def _slot(self, row: int, position: int) -> int:
        page_size = self.facts.host.page_size
        return self.tables[row][position // page_size] * page_size + position % page_size

    def _history(self, row: int, length: int) -> list[int]:
        return [self.slots[self._slot(row, position)] for position in range(length)]

    def _chunk(self, chunk) -> tuple[int, ...]:
        self._check_state(chunk.row, chunk.start)
        for offset, token in enumerate(chunk.tokens):
            self._write(chunk.row, chunk.start + offset, token)
        length = chunk.start + len(chunk.tokens)
        self._check_window(chunk.row, range(chunk.start, length))
        history = self._history(chunk.row, length)
        token = next_token(history)
        self.lengths[chunk.row], self.last[chunk.row] = length, token
        self.states[chunk.row] = PaperState(length, tuple(history))
        return (token,) if chunk.is_last else ()

    def _decode(self, row: int, bound: int, nodes: int) -> tuple[int, ...]:
        length = self.lengths[row]
        assert length <= bound, "a bound is never below the truth"
        self._check_state(row, length)
        for node in range(nodes):  # drafts occupy slots before they are judged
            self._write(row, length + node, VOCAB + node)
        self._check_window(row, range(length, length + nodes))
        history, emitted = self._history(row, length), []
        token = self.last[row]
        for _ in range(self.rng.randint(1, nodes)):
            self._write(row, len(history), token)
            history.append(token)
            token = next_token(history)
            emitted.append(token)
        self.lengths[row], self.last[row] = len(history), token
        # To go back inside a round means not to advance; what was before it is lost.
        self.states[row] = PaperState(length + 1, tuple(history))
        return tuple(emitted)

    def _check_state(self, row: int, length: int) -> None:
        """A model with row state reads nothing of a text from before its state."""
        state = self.states[row]
        if self.facts.snapshots.row_bytes and length:
            assert state.first <= length <= len(state.tokens), "no state of this length"
            assert list(state.tokens[:length]) == self._history(row, length)


def facts(
    *,
    num_pages: int = 64,
    page_size: int = 4,
    nodes: int = 1,
    depth: int = 0,
    max_rows: int = 4,
    step_tokens: int = 16,
    max_context: int = 64,
    max_queued: int = 1000,
    prefix_cache: bool = True,
    is_paced: bool = False,
    is_adaptive: bool = False,
    num_snapshots: int = 0,
    every: int = 0,
    window: int = 0,
    window_pages: int = 0,
    is_chunk: bool = False,
) -> RunnerFacts:
    return RunnerFacts(
        memory=MemoryFacts(
            weight_bytes=0,
            page_bytes=page_size * 64,
            num_pages=num_pages,
            tp_size=1,
            ranks=(),
            windows=WindowFacts(
                window=Window(tokens=window, is_chunk=is_chunk),
                num_pages=window_pages,
                page_bytes=page_size * 64,
            ),
        ),
        vocab_size=VOCAB,
        hidden_size=8,
        takes_embeds=False,
        draft=DraftFacts(
            budget=Budget(steps=nodes - 1, nodes=nodes),
            lead=0,
            lookahead=int(nodes > 1),
            needs_text=False,
            is_paced=is_paced,
            is_adaptive=is_adaptive,
            is_ranked=False,
        ),
        max_chunks=3,
        host=HostSettings(
            max_context=max_context,
            max_rows=max_rows,
            max_step_tokens=step_tokens,
            max_queued=max_queued,
            page_size=page_size,
            prefix_cache=prefix_cache,
        ),
        depth=depth,
        snapshots=SnapshotFacts(
            num=num_snapshots, row_bytes=int(num_snapshots > 0), every=every or page_size
        ),
    )


def submission(
    request_id: str, prompt: list[int], *, max_tokens: int = 8, stop=(), priority: int = 0
) -> Submission:
    return Submission(
        request_id=request_id,
        prompt=tuple(prompt),
        sampling=RowSampling(seed=0),
        limits=Limits(max_tokens=max_tokens, stop_ids=frozenset(stop)),
        budget=Budget(steps=63, topk=64, nodes=64),
        priority=priority,
    )
