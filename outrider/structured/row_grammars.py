"""The grammars of rows beside the steps that obey them: the one place where a step asks the host.

A step with a grammar row sends its draft trees home, runs the target, and waits for masks. The host
makes them meanwhile: it first hears what earlier steps emitted, then walks the trees.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from outrider.ops.tree.draft_tree import DraftTree
from outrider.step.device_stream import DeviceEvent, record_event_here
from outrider.step.host_copy import pinned_for
from outrider.step.plan import StepPlan
from outrider.step.shape import StepShape
from outrider.step.step_output import PackedOutput, unpack_tokens
from outrider.structured.grammar_cache import Grammars
from outrider.structured.grammar_matcher import WORD, MatcherStates, bit_of
from outrider.structured.grammar_state import GrammarState, advance, mask_tree
from outrider.wire.row_sampling import Ban
from outrider.wire.scheduled_batch import RowAdmission, ScheduledBatch

# Seconds of a core that the grammar of one row may take. An ordinary node takes 20 microseconds.
MAX_STEP_S = 0.1
MAX_TOKEN_S = 0.002  # a row that gave way reads its whole output again

GIVEN_UP = "matching the grammar takes too long; make it less ambiguous"


class _Row:
    """The grammar of a row's present owner, and the patience that is left for it.

    Some grammars are compiled in no time and take ever longer with every token. Nobody else shall
    wait for one, so it is given up: its masks are not made any more, and its request ends.
    """

    def __init__(self, state: GrammarState, ban: Ban) -> None:
        self._state = state
        self._ban = ban
        self.is_given_up = False

    def hear(self, tokens: Sequence[int]) -> None:
        """These tokens were emitted."""
        if not self.is_given_up:
            with self._patience(len(tokens)):
                advance(self._state, tokens)

    def mask(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        positions: Sequence[int],
        bits: torch.Tensor,  # [n, words]
        first: int,
    ) -> None:
        """Write the masks of a tree, whose node 0 is row `first`."""
        if not self.is_given_up:
            with self._patience(len(tokens)):
                mask_tree(self._state, tokens, parents, bits, first)
                _ban(bits[first : first + len(tokens)], self._ban, positions)

    @contextmanager
    def _patience(self, num_tokens: int) -> Iterator[None]:
        # The time of this thread: a busy machine is not the grammar's fault.
        began_s = time.thread_time()
        yield
        self.is_given_up = time.thread_time() - began_s > MAX_STEP_S + MAX_TOKEN_S * num_tokens


@dataclass(frozen=True, slots=True)
class _Emitter:
    """A row of a step that will emit tokens of a grammar, and its place among decodes or chunks."""

    row: int
    grammar: _Row
    place: int
    is_chunk: bool


@dataclass(frozen=True, slots=True)
class _Unheard:
    """A submitted step whose tokens the grammars have not heard of yet."""

    emitters: tuple[_Emitter, ...]
    shape: StepShape
    output_ready: DeviceEvent
    output: PackedOutput


@dataclass(frozen=True, slots=True)
class _Trees:
    """The draft trees of a step on their way to the host."""

    shape: StepShape
    output_ready: DeviceEvent
    packed: torch.Tensor  # [2 * num_uniform + num_sampled] tokens, parents, positions


class GrammarTable:
    """Owns the grammar state of every row that has one, and the masks of the present step."""

    def __init__(
        self, grammars: Grammars, *, largest: StepShape, vocab: int, device: torch.device
    ) -> None:
        self.grammars = grammars
        self._device = device
        self._size = (largest.num_sampled, -(-vocab // WORD))
        self._rows: dict[int, _Row] = {}
        self._emitters: tuple[_Emitter, ...] = ()  # of the present step
        self._unheard: list[_Unheard] = []
        self._trees: list[_Trees] = []  # of the present step, between its two calls
        self._makers: list[MatcherStates] = []  # one, once somebody asked
        self._bits: list[torch.Tensor] = []  # masks of the largest step, likewise: host, device

    @property
    def mask_bytes(self) -> int:
        """That the masks of the largest step take on the device, once somebody asks for one."""
        places, words = self._size
        return places * words * torch.int32.itemsize

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Rows get new owners: a grammar begins after what was emitted before a preemption."""
        for admission in admissions:
            self._rows.pop(admission.row, None)
            grammar = admission.sampling.grammar
            if grammar.is_asked:
                row = _Row(self._maker().make(grammar), admission.sampling.ban)
                row.hear(admission.output)
                self._rows[admission.row] = row

    def begin(self, batch: ScheduledBatch) -> bool:
        """Look who will emit tokens of a grammar in this step; whether anybody will."""
        self._trees.clear()
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

    def end(
        self, shape: StepShape, output_ready: DeviceEvent, output: PackedOutput
    ) -> dict[int, str]:
        """The step is submitted; what it emits will be heard before the next masks are made.

        Returns the rows whose grammar was given up, and why.
        """
        if not self._emitters:
            return {}
        self._unheard.append(_Unheard(self._emitters, shape, output_ready, output))
        return {each.row: GIVEN_UP for each in self._emitters if each.grammar.is_given_up}

    def forget(self) -> None:
        """Nobody has a row any more."""
        self._rows.clear()
        self._unheard.clear()
        self._emitters = ()

    def masks(self, shape: StepShape) -> torch.Tensor:
        """[num_sampled, words] int32 on the device, where the masks of such steps always lie."""
        self._make_room()
        return self._bits[1][: shape.num_sampled]

    def send_trees(self, packed: torch.Tensor, shape: StepShape) -> None:
        """A live call: start to copy the trees home, without waiting."""
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=packed.is_cuda)
        host.copy_(packed, non_blocking=True)
        self._trees = [_Trees(shape, record_event_here(packed.device), host)]

    def write_masks(self, masks: torch.Tensor) -> None:
        """A live call: make the masks of the trees sent before and send them down."""
        (trees,) = self._trees
        trees.output_ready.wait()
        # Steps before this one are over, so their copies of the masks are, too.
        bits = self._bits[0][: masks.shape[0]]
        bits.fill_(-1)
        self._hear()
        self._fill(bits, trees)
        masks.copy_(bits, non_blocking=True)

    def _hear(self) -> None:
        """Advance the grammars by what earlier steps emitted. Who has lost its row is skipped."""
        for step in self._unheard:
            step.output_ready.wait()
            read = unpack_tokens(step.output, step.shape)
            for emitter in step.emitters:
                if self._rows.get(emitter.row) is not emitter.grammar:
                    continue
                place = emitter.place
                emitted = (
                    read.emitted[place][: read.num_accepted[place] + 1]
                    if not emitter.is_chunk
                    else [read.chunk_choice[place]]
                )
                emitter.grammar.hear(emitted)
        self._unheard.clear()

    def _fill(self, bits: torch.Tensor, trees: _Trees) -> None:
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
            emitter.grammar.mask(own_tokens, own_parents, positions[own], bits, first)

    def _make_room(self) -> None:
        """Before anything records a step with masks: their address stays."""
        if not self._bits:
            host = pinned_for(self._device, torch.zeros(self._size, dtype=torch.int32))
            self._bits = [host, torch.zeros(self._size, dtype=torch.int32, device=self._device)]

    def _maker(self) -> MatcherStates:
        if not self._makers:
            self._make_room()
            self._makers.append(MatcherStates(self.grammars))
        return self._makers[0]


def pack_trees(plan: StepPlan, tree: DraftTree) -> torch.Tensor:
    """What `send_trees` takes home, in one tensor."""
    parts = (tree.tokens, tree.parents, plan.sampled.positions)
    return torch.cat([part.flatten() for part in parts])


def _ban(bits: torch.Tensor, ban: Ban, positions: Sequence[int]) -> None:
    """Forbid banned tokens too, except where the grammar leaves nothing else."""
    for mask, position in zip(bits, positions, strict=True):
        if position < ban.before:
            before = mask.clone()
            for token in ban.tokens:
                mask[token // WORD] &= ~bit_of(token)
            if not mask.any():
                mask.copy_(before)
