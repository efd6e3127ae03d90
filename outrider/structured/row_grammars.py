"""The grammar states of rows and the token masks of steps. Only here does a step wait for the host.

A step with a grammar row copies its draft trees to the host, runs the target, and waits for masks.
Meanwhile matcher processes advance the grammars by what earlier steps emitted, and walk the trees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.ops.tree.draft_tree import DraftTree
from outrider.step.device_stream import DeviceEvent, record_event_here
from outrider.step.host_copy import download, pinned_for
from outrider.step.plan import StepPlan
from outrider.step.shape import StepShape
from outrider.structured.grammar_cache import Grammars
from outrider.structured.grammar_matcher import WORD, bit_of
from outrider.structured.match_rows import MaskTask, RowGrammar, StepMatch
from outrider.structured.matcher_pool import MatcherPool
from outrider.wire.failure import RequestFailure
from outrider.wire.row_sampling import Ban
from outrider.wire.scheduled_batch import RowAdmission, ScheduledBatch


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
    grammar: RowGrammar
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
    packed: torch.Tensor  # [3 * num_nodes + num_sampled] tokens, parents, queries, positions


@dataclass(frozen=True, slots=True, kw_only=True)
class _MaskBuffers:
    """Room for the masks of the largest step, one bit per token."""

    host: torch.Tensor  # [num_sampled, words] int32, pinned
    device: torch.Tensor  # [num_sampled, words] int32


class StepGrammars(Protocol):
    """The grammars of rows, as a step uses them."""

    @property
    def grammars(self) -> Grammars: ...

    @property
    def mask_bytes(self) -> int:
        """Bytes that the masks of the largest step take on the device, once they are used."""
        ...

    def admit(self, admissions: Sequence[RowAdmission]) -> None: ...

    def begin(self, batch: ScheduledBatch) -> bool:
        """Whether rows with a grammar emit tokens in this step."""
        ...

    def end(self, output: StepTokens) -> dict[int, RequestFailure]:
        """Note a submitted step; returns the rows whose request cannot go on, with the reason."""
        ...

    def forget(self) -> None:
        """Drop the grammars of all rows."""
        ...

    def masks(self, shape: StepShape) -> torch.Tensor: ...  # [num_sampled, words] int32

    def send_trees(self, packed: torch.Tensor, shape: StepShape) -> None: ...

    def write_masks(self, masks: torch.Tensor) -> None: ...


class RowGrammars:
    """Owns the grammar state of every row that has one, and the masks of the current step."""

    def __init__(
        self, grammars: Grammars, *, largest: StepShape, vocab: int, device: torch.device
    ) -> None:
        self._device = device
        self._size = (largest.num_sampled, -(-vocab // WORD))
        self.grammars = MatcherPool(grammars, mask_rows=self._size[0], mask_words=self._size[1])
        self._rows: dict[int, RowGrammar] = {}
        self._emitters: tuple[_Emitter, ...] = ()  # of the current step
        self._unread: list[_UnreadStep] = []
        self._trees: _Trees | None = None  # of the current step, between its two graph breaks
        self._match: StepMatch | None = None  # of the current step, once the trees are copied
        self._buffers: _MaskBuffers | None = None  # until the first request with a grammar

    @property
    def mask_bytes(self) -> int:
        """Bytes that the masks of the largest step take on the device, once they are used."""
        places, words = self._size
        return places * words * torch.int32.itemsize

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Give rows to new requests. A preempted request goes on after what it has emitted."""
        for admission in admissions:
            if (former := self._rows.pop(admission.row, None)) is not None:
                former.loaded.drop(former.number)
            if admission.sampling.grammar.is_wanted:
                self._make_buffers()
                self._rows[admission.row] = self._admit_row(admission)

    def _admit_row(self, admission: RowAdmission) -> RowGrammar:
        grammar = admission.sampling.grammar
        return RowGrammar(
            self.grammars.loaded(grammar.spec),
            ends=grammar.ends,
            ban=admission.sampling.ban,
            output=admission.output,
        )

    def begin(self, batch: ScheduledBatch) -> bool:
        """Find the rows with a grammar that emit tokens in this step; returns if there are any."""
        self._trees = self._match = None
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
        emitting = {each.row for each in self._emitters}
        for row, grammar in self._rows.items():
            grammar.note_step(is_emitting=row in emitting)
        return bool(self._emitters)

    def end(self, output: StepTokens) -> dict[int, RequestFailure]:
        """Note a submitted step: its tokens are read before the next masks are made.

        Returns the rows whose request cannot go on, with the failure.
        """
        if not self._emitters:
            return {}
        self._unread.append(_UnreadStep(self._emitters, output))
        return {
            each.row: each.grammar.failure
            for each in self._emitters
            if not each.grammar.failure.is_none
        }

    def forget(self) -> None:
        """Drop the grammars of all rows. A step that failed may have left answers unread."""
        for row in self._rows.values():
            row.loaded.drop(row.number)
            row.loaded.close()
        self._rows.clear()
        self._unread.clear()
        self._emitters = ()

    def masks(self, shape: StepShape) -> torch.Tensor:
        """[num_sampled, words] int32 on the device. The address is the same in every step."""
        return self._make_buffers().device[: shape.num_sampled]

    def send_trees(self, packed: torch.Tensor, shape: StepShape) -> None:
        """Start to copy the trees to the host. Runs in a graph break."""
        host = download(packed)
        self._trees = _Trees(shape, record_event_here(packed.device), host)
        is_copied = self._trees.copied.has_passed  # on a CPU: match while the target runs
        self._match = self._start_match(self._trees) if is_copied else None

    def write_masks(self, masks: torch.Tensor) -> None:
        """Make the masks and start to copy them to the device. Runs in a graph break."""
        assert self._trees is not None, "send_trees runs first"
        self._trees.copied.wait()
        match = self._match or self._start_match(self._trees)
        match.wait()
        # Steps before this one are over, and so are their copies out of the host buffer.
        host = self._make_buffers().host[: masks.shape[0]].fill_(-1)
        for task in match.tasks:
            if task.grammar.failure.is_none:
                own = slice(task.first, task.first + len(task.tokens))
                host[own] = torch.from_numpy(self.grammars.masks.bits[own])
                _ban(host[own], task.grammar.ban, task.positions)
        masks.copy_(host, non_blocking=True)

    def _start_match(self, trees: _Trees) -> StepMatch:
        self._read_emitted()
        return StepMatch(self._mask_tasks(trees))

    def _read_emitted(self) -> None:
        """Give grammars what earlier steps emitted, unless the row has a new request."""
        for step in self._unread:
            step.output.wait()
            read = step.output.tokens()
            for emitter in step.emitters:
                if self._rows.get(emitter.row) is not emitter.grammar:
                    continue
                place = emitter.place
                emitter.grammar.emit(
                    read.emitted[place][: read.num_accepted[place] + 1]
                    if not emitter.is_chunk
                    else [read.chunk_choice[place]]
                )
        self._unread.clear()

    def _mask_tasks(self, trees: _Trees) -> list[MaskTask]:
        num_nodes, nodes = trees.shape.num_nodes, trees.shape.nodes
        sizes = [num_nodes, num_nodes, num_nodes, trees.shape.num_sampled]
        tokens, parents, queries, positions = (
            part.tolist() for part in torch.split(trees.packed, sizes)
        )
        tasks = []
        for emitter in self._emitters:
            place, own_tokens, own_parents = emitter.place, [0], [-1]
            first = trees.shape.num_decode_query + place
            if not emitter.is_chunk:
                first, own = queries[place * nodes], slice(place * nodes, (place + 1) * nodes)
                own_tokens, own_parents = tokens[own], parents[own]
                if trees.shape.ragged:  # absent nodes come last, and have no masks
                    own_tokens = [token for token in own_tokens if token >= 0]
            count = len(own_tokens)
            task = MaskTask(
                grammar=emitter.grammar,
                tokens=own_tokens,
                parents=own_parents[:count],
                positions=positions[first : first + count],
                first=first,
            )
            tasks.append(task)
        return tasks

    def _make_buffers(self) -> _MaskBuffers:
        """The buffers, made once and before a graph with masks is captured: their address stays."""
        if self._buffers is None:
            zeros = torch.zeros(self._size, dtype=torch.int32)
            self._buffers = _MaskBuffers(
                host=pinned_for(self._device, zeros),
                device=torch.zeros(self._size, dtype=torch.int32, device=self._device),
            )
        return self._buffers


def pack_trees(plan: StepPlan, tree: DraftTree) -> torch.Tensor:
    """Trees and positions in one tensor, which `send_trees` copies to the host."""
    parts = (tree.tokens, tree.parents, plan.queries.of_nodes, plan.sampled.positions)
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
