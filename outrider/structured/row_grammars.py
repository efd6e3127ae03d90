"""The grammar states of rows and the token masks of steps. Only here does a step wait for the host.

A step with a grammar row copies its draft trees to the host, runs the target, and waits for masks.
Meanwhile the host advances the grammars by what earlier steps emitted, then walks the trees.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from outrider.ops.tree.draft_tree import DraftTree
from outrider.step.device_stream import DeviceEvent, record_event_here
from outrider.step.host_copy import download, pinned_for
from outrider.step.plan import StepPlan
from outrider.step.shape import StepShape
from outrider.structured.grammar_cache import Grammars
from outrider.structured.grammar_matcher import WORD, MatcherStates, bit_of
from outrider.structured.grammar_state import GrammarState, advance, mask_tree
from outrider.structured.matcher_thread import MatcherTask, MatcherThread
from outrider.wire.row_sampling import Ban
from outrider.wire.scheduled_batch import RowAdmission, ScheduledBatch

# CPU seconds that the grammar of one row may take, beside an allowance for each node and token. A
# garbage collection of the process can fall into this time, so it is far above what matching takes.
MAX_STEP_S = 0.3
MAX_NODE_S = 0.002  # a node usually takes 20 to 200 microseconds, by the size of the vocabulary
MAX_TOKEN_S = 0.0001  # an emitted token usually takes 2; a preempted row reads its output again
MAX_LEFT_BEHIND = 4  # matchers that did not return in time and still run, before rows are refused

TOO_SLOW = "matching the grammar takes too long; make it less ambiguous"
TOO_MANY_SLOW = "the grammars of other requests keep this machine busy; try again later"


class _RowGrammar:
    """The grammar state of the request that holds a row, and the time that matching it may take.

    Some grammars compile fast but take longer with every token. Other requests must not wait for
    such a grammar: once it exceeds its time, it gets no more masks and its request ends.
    """

    def __init__(self, state: GrammarState, ban: Ban) -> None:
        self._state = state
        self._ban = ban
        self._left_s = MAX_STEP_S  # of its time; each node and each token adds its allowance
        self.error = ""  # why its request ends; empty while it can go on

    def advance(self, tokens: Sequence[int]) -> MatcherTask:
        """Take in tokens that were emitted."""

        def take_in(masks: torch.Tensor) -> None:
            del masks
            advance(self._state, tokens)

        return self._task(take_in, slice(0, 0), MAX_TOKEN_S * len(tokens))

    def mask(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        positions: Sequence[int],
        first: int,
    ) -> MatcherTask:
        """Write the masks of a tree; that of node 0 is row `first` of all masks."""

        def write(masks: torch.Tensor) -> None:  # [n, words]
            mask_tree(self._state, tokens, parents, masks, first)
            _ban(masks[own], self._ban, positions)

        own = slice(first, first + len(tokens))
        return self._task(write, own, MAX_NODE_S * len(tokens))

    def _task(
        self, run: Callable[[torch.Tensor], None], own: slice, allowed_s: float
    ) -> MatcherTask:
        def run_timed(masks: torch.Tensor) -> None:
            if self.error:
                return
            # Thread time, not wall time: a busy machine is not the grammar's fault.
            began_s = time.thread_time()
            run(masks)
            left_s = self._left_s + allowed_s - (time.thread_time() - began_s)
            self._left_s = min(left_s, MAX_STEP_S)
            if left_s < 0:
                self.error = TOO_SLOW

        return MatcherTask(run_timed, own, limit_s=lambda: self._left_s + allowed_s)


class EmittedTokens(Protocol):
    """The tokens that a step emitted, by place in the batch."""

    @property
    def num_accepted(self) -> Sequence[int]: ...  # of decode rows
    @property
    def emitted(self) -> Sequence[Sequence[int]]: ...  # of decode rows; padded
    @property
    def chunk_choice(self) -> Sequence[int]: ...


class StepTokens(Protocol):
    """The output of a step that is being copied to the host."""

    def wait(self) -> None: ...
    def tokens(self) -> EmittedTokens: ...


@dataclass(frozen=True, slots=True)
class _Emitter:
    """A row with a grammar that emits tokens in a step."""

    row: int
    grammar: _RowGrammar
    place: int  # among the decode rows, or among the chunks
    is_chunk: bool


@dataclass(frozen=True, slots=True)
class _UnreadStep:
    """A submitted step whose emitted tokens the grammars have not taken in yet."""

    emitters: tuple[_Emitter, ...]
    output: StepTokens


@dataclass(frozen=True, slots=True)
class _Trees:
    """The draft trees of a step, being copied to the host."""

    shape: StepShape
    copied: DeviceEvent
    packed: torch.Tensor  # [2 * num_decode_query + num_sampled] tokens, parents, positions


@dataclass(frozen=True, slots=True, kw_only=True)
class _MaskBuffers:
    """Room for the masks of the largest step, one bit per token."""

    host: torch.Tensor  # [num_sampled, words] int32, pinned
    device: torch.Tensor  # [num_sampled, words] int32


class RowGrammars:
    """Owns the grammar state of every row that has one, and the masks of the current step."""

    def __init__(
        self, grammars: Grammars, *, largest: StepShape, vocab: int, device: torch.device
    ) -> None:
        self.grammars = grammars
        self._device = device
        self._size = (largest.num_sampled, -(-vocab // WORD))
        self._rows: dict[int, _RowGrammar] = {}
        self._emitters: tuple[_Emitter, ...] = ()  # of the current step
        self._unread: list[_UnreadStep] = []
        self._trees: _Trees | None = None  # of the current step, between its two graph breaks
        self._tasks: list[tuple[_RowGrammar, MatcherTask]] = []  # to run before the next masks
        self._thread: MatcherThread | None = None  # until the first request with a grammar
        self._matchers: MatcherStates | None = None  # likewise
        self._buffers: _MaskBuffers | None = None  # likewise

    @property
    def mask_bytes(self) -> int:
        """Bytes that the masks of the largest step take on the device, once they are used."""
        places, words = self._size
        return places * words * torch.int32.itemsize

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Give rows to new requests. A preempted request goes on after what it has emitted."""
        for admission in admissions:
            self._rows.pop(admission.row, None)
            grammar = admission.sampling.grammar
            if grammar.is_wanted:
                state = self._load_matchers().make(grammar)
                row = _RowGrammar(state, admission.sampling.ban)
                if self._matcher_thread().num_left_behind >= MAX_LEFT_BEHIND:
                    row.error = TOO_MANY_SLOW
                self._tasks.append((row, row.advance(admission.output)))
                self._rows[admission.row] = row

    def begin(self, batch: ScheduledBatch) -> bool:
        """Find the rows with a grammar that emit tokens in this step; returns if there are any."""
        self._trees = None
        self._emitters = ()
        if not self._rows:
            return False
        decodes = [(row, place, False) for place, row in enumerate(batch.decodes.rows)]
        chunks = [(c.row, place, True) for place, c in enumerate(batch.chunks) if c.is_last]
        self._emitters = tuple(
            _Emitter(row, self._rows[row], place, is_chunk)
            for row, place, is_chunk in (*decodes, *chunks)
            if row in self._rows
        )
        return bool(self._emitters)

    def end(self, output: StepTokens) -> dict[int, str]:
        """Note a submitted step: its tokens are read before the next masks are made.

        Returns the rows whose request cannot go on, with the reason.
        """
        if not self._emitters:
            return {}
        self._unread.append(_UnreadStep(self._emitters, output))
        return {each.row: each.grammar.error for each in self._emitters if each.grammar.error}

    def forget(self) -> None:
        """Drop the grammars of all rows."""
        self._rows.clear()
        self._unread.clear()
        self._tasks.clear()
        self._emitters = ()

    def masks(self, shape: StepShape) -> torch.Tensor:
        """[num_sampled, words] int32 on the device. The address is the same in every step."""
        return self._make_buffers().device[: shape.num_sampled]

    def send_trees(self, packed: torch.Tensor, shape: StepShape) -> None:
        """Start to copy the trees to the host. Runs in a graph break."""
        host = download(packed)
        self._trees = _Trees(shape, record_event_here(packed.device), host)

    def write_masks(self, masks: torch.Tensor) -> None:
        """Make the masks and start to copy them to the device. Runs in a graph break."""
        trees = self._trees
        assert trees is not None, "send_trees runs first"
        trees.copied.wait()
        # Steps before this one are over, and so are their copies out of the host buffer.
        self._make_buffers().host[: masks.shape[0]].fill_(-1)
        self._read_emitted()
        self._walk_trees(trees)
        self._run_tasks()
        masks.copy_(self._make_buffers().host[: masks.shape[0]], non_blocking=True)

    def _read_emitted(self) -> None:
        """Let grammars take in what earlier steps emitted, unless the row has a new request."""
        for step in self._unread:
            step.output.wait()
            read = step.output.tokens()
            for emitter in step.emitters:
                if self._rows.get(emitter.row) is not emitter.grammar:
                    continue
                place = emitter.place
                emitted = (
                    read.emitted[place][: read.num_accepted[place] + 1]
                    if not emitter.is_chunk
                    else [read.chunk_choice[place]]
                )
                self._tasks.append((emitter.grammar, emitter.grammar.advance(emitted)))
        self._unread.clear()

    def _walk_trees(self, trees: _Trees) -> None:
        num_decode_query, nodes = trees.shape.num_decode_query, trees.shape.nodes
        sizes = [num_decode_query, num_decode_query, trees.shape.num_sampled]
        tokens, parents, positions = (part.tolist() for part in torch.split(trees.packed, sizes))
        for emitter in self._emitters:
            first, count = emitter.place * nodes, nodes
            if emitter.is_chunk:
                first, count = num_decode_query + emitter.place, 1
            own = slice(first, first + count)
            own_tokens = [0] if emitter.is_chunk else tokens[own]
            own_parents = [-1] if emitter.is_chunk else parents[own]
            task = emitter.grammar.mask(own_tokens, own_parents, positions[own], first)
            self._tasks.append((emitter.grammar, task))

    def _run_tasks(self) -> None:
        """Advance grammars and write masks. Rows whose matcher does not return in time get none."""
        tasks, self._tasks = self._tasks, []
        while tasks:
            host = self._make_buffers().host
            num_done = self._matcher_thread().run([task for _, task in tasks], host)
            if num_done < len(tasks):
                grammar, stuck = tasks[num_done]
                grammar.error = TOO_SLOW
                # The matcher may write to the old buffer at any later time.
                host = pinned_for(self._device, host.clone())
                host[stuck.own].fill_(-1)
                self._buffers = replace(self._make_buffers(), host=host)
            tasks = tasks[num_done + 1 :]

    def _make_buffers(self) -> _MaskBuffers:
        """The buffers, made once and before a graph with masks is captured: their address stays."""
        if self._buffers is None:
            zeros = torch.zeros(self._size, dtype=torch.int32)
            self._buffers = _MaskBuffers(
                host=pinned_for(self._device, zeros),
                device=torch.zeros(self._size, dtype=torch.int32, device=self._device),
            )
        return self._buffers

    def _matcher_thread(self) -> MatcherThread:
        if self._thread is None:
            self._thread = MatcherThread()
        return self._thread

    def _load_matchers(self) -> MatcherStates:
        if self._matchers is None:
            self._make_buffers()
            self._matchers = MatcherStates(self.grammars)
        return self._matchers


def pack_trees(plan: StepPlan, tree: DraftTree) -> torch.Tensor:
    """Trees and positions in one tensor, which `send_trees` copies to the host."""
    parts = (tree.tokens, tree.parents, plan.sampled.positions)
    return torch.cat([part.flatten() for part in parts])


def _ban(bits: torch.Tensor, ban: Ban, positions: Sequence[int]) -> None:
    """Forbid banned tokens, too, unless the grammar then leaves no token at all."""
    for mask, position in zip(bits, positions, strict=True):
        if position < ban.before:
            before = mask.clone()
            for token in ban.tokens:
                mask[token // WORD] &= ~bit_of(token)
            if not mask.any():
                mask.copy_(before)
