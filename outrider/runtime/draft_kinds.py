"""Kinds of drafters an engine can be built with, each with its facts known beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from outrider.kv.kv_pool import KVPool, Layout, ModelPool
from outrider.models.block_model import AnyBlockModel
from outrider.models.cache_layout import CacheRoom, OpenCache
from outrider.models.draft_model import AnyDraftModel, ModelFacts
from outrider.models.model_config import AnyAttention
from outrider.models.mtp.module_chain import ModuleChain
from outrider.models.paged_layout import paged_layout
from outrider.ops.tree.find_occurrences import NgramMatch
from outrider.sampling.sampling_table import SamplingTable
from outrider.spec.block_drafter import BlockDrafter
from outrider.spec.choose_tree import TreeChooser
from outrider.spec.drafter import Drafter, NullDrafter
from outrider.spec.merged_drafter import MergedDrafter, TreeGrower
from outrider.spec.model_drafter import ModelDrafter
from outrider.spec.mtp_drafter import ModuleDrafter
from outrider.spec.ngram_drafter import NgramDrafter
from outrider.spec.shared_text import SharedText
from outrider.spec.suffix_lookup import SuffixLookup
from outrider.spec.text_lookup import TextLookup
from outrider.spec.text_table import PredictionTable, TextTable
from outrider.step.attention_backend import AttentionBackend, AttentionPlanner
from outrider.step.shape import StepShape
from outrider.wire.draft_budget import PLAIN, Budget
from outrider.wire.row_sampling import MAX_PREDICTION
from outrider.wire.runner_facts import DraftFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRoom:
    """The tables and pools that a drafter is built with."""

    target: Layout
    cache: CacheRoom
    sampling: SamplingTable
    largest: StepShape
    is_ragged: bool  # rows of a step may draft different numbers of nodes
    gets_pages: bool  # other servers write pages between two steps

    def chooser(self, facts: DraftFacts) -> TreeChooser:
        """What chooses trees; it learns from steps that draft alike where others may share."""
        may_share = facts.is_adaptive and facts.is_ranked and self.is_ragged
        return TreeChooser(self.sampling.seed.device, learns_alike=may_share)

    def open(self, facts: ModelFacts, *, nodes: int) -> OpenCache[ModelPool, AttentionPlanner]:
        """The cache of a draft model, for chains of up to that many nodes."""
        target = self.target
        layout = facts.layout(page_size=target.page_size, dtype=target.dtype, nodes=nodes)
        return layout.open(self.cache)

    def open_pages(self, facts: ModelFacts) -> OpenCache[KVPool, AttentionBackend]:
        """A cache of keys and values for the layers of a draft model, in the target's pages."""
        layout = paged_layout(
            facts.attention,
            layers=facts.num_layers,
            page_size=self.target.page_size,
            dtype=self.target.dtype,
        )
        return layout.open(self.cache)


class DraftKind(Protocol):
    """A choice of drafter, ready to be built."""

    @property
    def facts(self) -> DraftFacts: ...

    @property
    def attention(self) -> Sequence[AnyAttention]:
        """The draft model's attention that runs on the shared backend."""
        ...

    def build(self, room: DraftRoom) -> Drafter: ...


class ModelKind(DraftKind, Protocol):
    """A draft model, whose drafts can join a tree with the paths of a lookup."""

    @property
    def budget(self) -> Budget: ...

    def build(self, room: DraftRoom) -> TreeGrower: ...


class NoDraft:
    """Plain decoding."""

    @property
    def facts(self) -> DraftFacts:
        return DraftFacts(
            budget=PLAIN,
            lead=0,
            lookahead=0,
            needs_text=False,
            is_paced=False,
            is_adaptive=False,
            is_ranked=False,
        )

    @property
    def attention(self) -> Sequence[AnyAttention]:
        return ()

    def build(self, room: DraftRoom) -> Drafter:
        del room
        return NullDrafter(self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDraft:
    """A draft model with a cache of its own."""

    model: AnyDraftModel
    budget: Budget
    is_adaptive: bool = False

    @property
    def facts(self) -> DraftFacts:
        lead = self.model.facts.lead
        return DraftFacts(
            budget=self.budget,
            lead=lead,
            lookahead=1 - lead,
            needs_text=False,
            is_paced=False,
            is_adaptive=self.is_adaptive,
            is_ranked=True,
        )

    @property
    def attention(self) -> Sequence[AnyAttention]:
        return self.model.facts.heads

    def build(self, room: DraftRoom) -> ModelDrafter:
        # The nodes of a draft round are stored after the cached tokens.
        cache = room.open(self.model.facts, nodes=self.budget.nodes)
        return ModelDrafter(
            self.model,
            kv=cache.pool,
            attention=cache.attention,
            sampling=room.sampling,
            facts=self.facts,
            largest=room.largest,
            chooser=room.chooser(self.facts),
            may_postpone=not room.gets_pages,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDraft:
    """A draft model that drafts a block in one pass."""

    model: AnyBlockModel
    budget: Budget  # not deeper than the block
    is_adaptive: bool = False

    def __post_init__(self) -> None:
        assert self.budget.steps <= self.model.block.num_drafts, "checked when it was configured"

    @property
    def facts(self) -> DraftFacts:
        return DraftFacts(
            budget=self.budget,
            lead=0,
            lookahead=self.model.block.lookahead,
            needs_text=False,
            is_paced=False,
            is_adaptive=self.is_adaptive,
            is_ranked=True,
            block=self.model.block.slots(self.budget.steps),
        )

    @property
    def attention(self) -> Sequence[AnyAttention]:
        return self.model.facts.heads

    def build(self, room: DraftRoom) -> BlockDrafter:
        cache = room.open(self.model.facts, nodes=self.budget.nodes)
        return BlockDrafter(
            self.model,
            kv=cache.pool,
            attention=cache.attention,
            sampling=room.sampling,
            facts=self.facts,
            largest=room.largest,
            chooser=room.chooser(self.facts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulesDraft:
    """One draft module per depth, each with its own layer of KV."""

    modules: ModuleChain
    budget: Budget  # a chain, not longer than there are modules
    is_adaptive: bool = False

    def __post_init__(self) -> None:
        assert self.budget.topk == 1, "checked when the budget was configured"
        assert self.budget.nodes <= len(self.modules) + 1, "likewise"

    @property
    def facts(self) -> DraftFacts:
        return DraftFacts(
            budget=self.budget,
            lead=0,
            lookahead=len(self.modules),
            needs_text=False,
            is_paced=False,
            is_adaptive=self.is_adaptive,
            is_ranked=False,
        )

    @property
    def attention(self) -> Sequence[AnyAttention]:
        return self.modules.facts.heads

    def build(self, room: DraftRoom) -> ModuleDrafter:
        cache = room.open_pages(self.modules.facts)
        return ModuleDrafter(
            self.modules,
            kv=cache.pool,
            attention=cache.attention,
            sampling=room.sampling,
            facts=self.facts,
            largest=room.largest,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramDraft:
    """A lookup in the row's own text, which has no KV."""

    budget: Budget
    min_match: int  # so many of the last tokens must have occurred together before
    max_match: int  # a longer match counts as one of this length
    is_adaptive: bool = False

    @property
    def facts(self) -> DraftFacts:
        return self.lookup_facts()

    def lookup_facts(self) -> DraftFacts:
        """The facts of every drafter that looks up text."""
        return DraftFacts(
            budget=self.budget,
            lead=0,
            lookahead=0,
            needs_text=True,
            is_paced=True,
            is_adaptive=self.is_adaptive,
            is_ranked=True,
        )

    @property
    def attention(self) -> Sequence[AnyAttention]:
        return ()

    def build(self, room: DraftRoom) -> Drafter:
        chooser = room.chooser(self.facts)
        return NgramDrafter(self.facts, lookup=self.open_lookup(room), chooser=chooser)

    def open_lookup(self, room: DraftRoom) -> TextLookup:
        """The text of every row, to be searched."""
        tables = _open_tables(room, tail=self.max_match)
        return TextLookup(
            text=tables.text,
            predictions=tables.predictions,
            match=NgramMatch(least=self.min_match, most=self.max_match),
            page_size=room.target.page_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixDraft(NgramDraft):
    """A lookup in the row's own text and in the answers of requests that ended."""

    @property
    def facts(self) -> DraftFacts:
        return replace(self.lookup_facts(), needs_finished=True)

    def open_lookup(self, room: DraftRoom) -> TextLookup:
        tables, seeds = _open_tables(room, tail=self.max_match), room.sampling.seed
        return SuffixLookup(
            text=tables.text,
            predictions=tables.predictions,
            match=NgramMatch(least=self.min_match, most=self.max_match),
            page_size=room.target.page_size,
            shared=SharedText(
                rows=seeds.shape[0], longest_path=self.budget.steps, device=seeds.device
            ),
        )


def merged_budget(budget: Budget) -> Budget:
    """The budget of a tree with paths of a lookup: as many nodes, and up to twice as deep.

    A chain is as long as its nodes allow already.
    """
    return replace(budget, steps=max(budget.steps, min(budget.nodes - 1, 2 * budget.steps)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedDraft:
    """A draft model and a lookup, in one tree."""

    model: ModelKind
    lookup: NgramDraft  # with the budget of the whole tree

    @property
    def facts(self) -> DraftFacts:
        looked_up = self.lookup.facts
        return replace(
            self.model.facts,
            budget=looked_up.budget,
            needs_text=True,
            needs_finished=looked_up.needs_finished,
        )

    @property
    def attention(self) -> Sequence[AnyAttention]:
        return self.model.attention

    def build(self, room: DraftRoom) -> Drafter:
        return MergedDrafter(
            self.model.build(room),
            self.lookup.open_lookup(room),
            facts=self.facts,
            model_steps=self.model.budget.steps,
            chooser=room.chooser(self.facts),
        )


@dataclass(frozen=True, slots=True)
class _TextTables:
    """The text of every row, and the text that is predicted for it."""

    text: TextTable
    predictions: PredictionTable


def _open_tables(room: DraftRoom, *, tail: int) -> _TextTables:
    rows, device = room.sampling.seed.shape[0], room.sampling.seed.device
    reach = room.largest.pages * room.target.page_size  # tokens of the longest row
    width = min(reach, MAX_PREDICTION)
    return _TextTables(
        TextTable(rows=rows, reach=reach, device=device),
        PredictionTable(rows=rows, width=width, tail=tail, device=device),
    )
