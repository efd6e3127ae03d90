"""The forward pass that all families share: a pure function of a plan, the weights and the KV."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from outrider.distributed.rank_group import ONE_RANK, RankGroup
from outrider.kv.kv_pool import KVPool
from outrider.kv.windowed_planner import WindowedPlan, WindowedPlanner
from outrider.kv.windowed_pool import WindowedPool
from outrider.models.adapters.adapter_bank import NO_ADAPTERS, AdapterWeights
from outrider.models.cache_layout import CacheLayout
from outrider.models.draft_model import AuxLayers
from outrider.models.layers.attention_layer import NO_FACTORS, Attention, AttentionStep, pad_rows
from outrider.models.layers.compiled_layers import CompiledLayers, compile_layers
from outrider.models.layers.mlp import FeedForward, FeedStep
from outrider.models.layers.reduced_layers import OwnLogits, own_logits
from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.models.model_config import ModelConfig
from outrider.models.paged_layout import paged_layout
from outrider.models.recurrent.recurrence import Recurrence
from outrider.models.recurrent.recurrent_cache import RecurrentLayout, RecurrentPool
from outrider.models.rope_config import NO_ROPE, RopeConfig
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.place_embeds import add_embeds_, place_embeds_
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.sampling.scale_logits import scale_logits
from outrider.ops.sampling.widen_logits import widen_logits
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan
from outrider.wire.runner_facts import WeightStorage

DecoderPool = KVPool | RecurrentPool | WindowedPool


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """One layer: attention and feed-forward, each after its norm, or both after the first norm."""

    attention_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: FeedForward
    rotary: int = 0  # index of its rotary embedding among those of the stack
    is_windowed: bool = False  # it has a sliding window, or attention chunks
    is_parallel: bool = False  # the feed-forward reads what the attention reads


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxStates:
    """Where the streams that a drafter reads are copied to."""

    layers: tuple[int, ...]  # after how many layers; 0 is the input
    out: torch.Tensor  # [num_query, aux] one stream beside the other, perhaps others behind them


@dataclass(frozen=True, slots=True, kw_only=True)
class Deepstack:
    """What images add to the hidden states of their tokens after each of the first layers."""

    first: int  # query token of the first vector
    vectors: torch.Tensor  # [chunk.tokens, layers * hidden]
    is_embedded: torch.Tensor  # [chunk.tokens] int64, 1 where vectors are added

    @property
    def has_layers(self) -> bool:
        return self.vectors.shape[1] > 0

    def add_(self, stream: torch.Tensor, *, depth: int) -> None:  # [num_query or more, hidden]
        """Add to the stream after `depth` layers. Nothing to do after later layers."""
        own = self.vectors[:, (depth - 1) * stream.shape[1] : depth * stream.shape[1]]
        if own.shape[1]:
            chunks = stream[self.first : self.first + own.shape[0]]
            add_embeds_(chunks, own, self.is_embedded)


NO_DEEPSTACK = Deepstack(
    first=0, vectors=torch.empty(0, 0), is_embedded=torch.empty(0, dtype=torch.int64)
)


class LayerStack:
    """Owns the layers."""

    def __init__(self, layers: Sequence[DecoderLayer], compiled: CompiledLayers | None) -> None:
        self._layers = tuple(layers)
        self.compiled = compiled  # the same layers; None where they have other parts

    def __call__(
        self,
        x: torch.Tensor,  # [n, in] of the first norm; n is num_query or more
        stream: torch.Tensor,  # [n, hidden] the residual of the first layer; may be overwritten
        stored: Sequence[Any],  # the cache of each layer
        *,
        steps: Sequence[AttentionStep],  # one for each rotary embedding
        windowed: Sequence[AttentionStep] = (),  # the same for windowed layers, over window pages
        feed: FeedStep,
        aux: AuxStates,
        deepstack: Deepstack = NO_DEEPSTACK,
    ) -> torch.Tensor:  # [num_query or n, hidden]
        """The residual stream after all layers; writes the KV of every query token."""
        is_usual = not deepstack.has_layers and not steps[0].query_factors.numel()
        compiled = self.compiled if is_usual else None
        if compiled is not None and compiled.can_run(steps[0].backend, stored):
            return compiled(x, stream, stored, steps[0], aux.layers, aux.out)
        _copy_aux(aux, 0, stream)
        for number, (layer, cache) in enumerate(zip(self._layers, stored, strict=True), start=1):
            normed = layer.attention_norm(x)
            own = windowed if windowed and layer.is_windowed else steps
            stream = layer.attention(normed, stream, cache, own[layer.rotary])
            normed = normed if layer.is_parallel else layer.mlp_norm(stream)
            stream = x = layer.mlp(normed, stream, feed)
            deepstack.add_(stream, depth=number)
            _copy_aux(aux, number, stream)
        return stream


def stack_layers(layers: Sequence[DecoderLayer]) -> LayerStack:
    """The layers in the fastest form that they have."""
    if any(layer.rotary for layer in layers):  # the compiled form has one rotary embedding
        return LayerStack(layers, None)
    return LayerStack(layers, compile_layers([(layer.attention, layer.mlp) for layer in layers]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParts:
    """All weights of a decoder, ready to compute with."""

    embedding: torch.Tensor  # [vocab, hidden]
    rotaries: tuple[RotaryEmbedding, ...]  # that layers have
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    head: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    """What a run of the target returns, one row per query token."""

    hidden_states: torch.Tensor  # [num_query, hidden] final and normalised, as the head reads it
    aux_hidden_states: torch.Tensor  # [num_query, aux] those of `AuxLayers`, concatenated


class Decoder:
    """Owns the weights. `dtype` is that of activations and of the KV cache.

    Of a model that several ranks compute, it owns the share of this rank.
    """

    def __init__(
        self,
        config: ModelConfig,
        parts: DecoderParts,
        *,
        share: ModelConfig | None = None,  # None: all of the model
        ranks: RankGroup = ONE_RANK,
        adapters: AdapterWeights = NO_ADAPTERS,
        storage: tuple[WeightStorage, ...] = (),
    ) -> None:
        self.config = config
        self.share = share or config
        self.ranks = ranks
        self.adapters = adapters
        self.storage = storage
        self.dtype = parts.embedding.dtype
        self._parts = parts
        self._stack = stack_layers(parts.layers)
        self._ropes = config.pattern.different_ropes
        self._min_rows = parts.head.min_rows
        # Families with a factor round it to the type of the weights.
        self._embedding_factor = float(torch.tensor(config.multipliers.embedding).to(self.dtype))

    @property
    def embedding(self) -> torch.Tensor:  # [vocab, hidden]
        return self._parts.embedding

    @property
    def rotary(self) -> RotaryEmbedding:
        """Of the first layer."""
        return self._parts.rotaries[0]

    def layout(
        self, *, page_size: int, nodes: int
    ) -> CacheLayout[KVPool | RecurrentPool, AttentionBackend]:
        """The layout of its cache: pages of KV, and recurrent states for chains of `nodes`."""
        config = self.share
        paged = paged_layout(
            config.attention,
            layers=len(config.attending),
            page_size=page_size,
            dtype=self.dtype,
            windows=config.pattern.all_seen,
        )
        if not isinstance(config.recurrence, Recurrence):
            return paged
        return RecurrentLayout(
            kv=paged.kv,
            attention=config.attention,
            recurrence=config.recurrence,
            num_layers=config.num_layers,
            nodes=nodes,
        )

    def hidden_states(
        self, plan: StepPlan, kv: DecoderPool, attention: AttentionBackend | WindowedPlanner
    ) -> torch.Tensor:  # [num_query, hidden]
        """The final, normalised hidden state of every query token; writes their KV."""
        return self.forward(plan, kv, attention, AuxLayers()).hidden_states

    def forward(
        self,
        plan: StepPlan,
        kv: DecoderPool,
        attention: AttentionBackend | WindowedPlanner,
        aux_layers: AuxLayers,
    ) -> TargetOutput:
        """The final hidden state of every query token, and its aux hidden states; writes the KV."""
        parts, queries = self._parts, plan.queries
        num_query = queries.tokens.shape[0]
        steps, windowed = self._steps(plan, attention)
        feed = FeedStep(tokens=queries.tokens, slots=queries.slots, page_size=kv.layout.page_size)
        # Rows past num_query only give linear layers a faster size; attention never sees them.
        tokens = pad_rows(queries.tokens, max(num_query, self._min_rows))
        self.adapters.begin(queries.adapters, tokens.shape[0])
        hidden_states = self._inputs(plan, tokens)
        aux_hidden_states = hidden_states.new_empty(num_query, self._aux_width(aux_layers))
        aux = AuxStates(layers=aux_layers.layers, out=aux_hidden_states)
        hidden_states = self._stack(
            hidden_states,
            hidden_states,
            kv.layers,
            steps=steps,
            windowed=windowed,
            feed=feed,
            aux=aux,
            deepstack=_deepstack(plan),
        )
        hidden_states = parts.norm(hidden_states[:num_query])
        if aux_layers.final:
            aux_hidden_states[:, -hidden_states.shape[1] :] = hidden_states
        return TargetOutput(hidden_states=hidden_states, aux_hidden_states=aux_hidden_states)

    def _steps(
        self, plan: StepPlan, attention: AttentionBackend | WindowedPlanner
    ) -> tuple[list[AttentionStep], list[AttentionStep]]:
        """The steps of layers, and those of windowed layers where they have window pages."""
        own, positions = plan.attention, plan.queries.positions
        backend = attention.backend if isinstance(attention, WindowedPlanner) else attention
        steps = [
            AttentionStep(
                rotation=rotary.at(_rotary_positions(plan)),
                slots=plan.queries.slots,
                backend=backend,
                plan=own.whole if isinstance(own, WindowedPlan) else own,
                query_factors=self._query_factors(positions, rope),
            )
            for rope, rotary in zip(self._ropes, self._parts.rotaries, strict=True)
        ]
        if not isinstance(own, WindowedPlan):
            return steps, []
        slots = plan.queries.window_slots
        return steps, [replace(step, slots=slots, plan=own.windowed) for step in steps]

    def _inputs(self, plan: StepPlan, tokens: torch.Tensor) -> torch.Tensor:  # [n] -> [n, hidden]
        """The input of the first layer: embeddings of tokens, or those that requests brought."""
        multipliers, shape = self.config.multipliers, plan.shape
        hidden_states = self.embed(tokens)
        if shape.has_embeds:
            embeds = plan.embeds
            of_chunks = slice(shape.num_decode_query, plan.queries.tokens.shape[0])
            place_embeds_(hidden_states[of_chunks], embeds.vectors, embeds.is_embedded)
        return hidden_states if multipliers.inputs == 1.0 else hidden_states * multipliers.inputs

    def _query_factors(
        self,
        positions: torch.Tensor,  # [num_query]
        rope: RopeConfig,  # of the layers
    ) -> torch.Tensor:  # [num_query], or [0]
        growth = self.config.multipliers.score_growth
        if not growth.factor or (growth.is_without_rope and rope != NO_ROPE):
            return NO_FACTORS
        intervals = torch.floor((positions + growth.first).float() / growth.interval)
        return torch.log1p(intervals) * growth.factor + 1.0

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:  # [n] -> [n, hidden]
        """What stands where a request may bring an embedding: the table's row times its factor."""
        rows = F.embedding(tokens, self._parts.embedding)
        return rows if self._embedding_factor == 1.0 else rows * self._embedding_factor

    def _aux_width(self, aux_layers: AuxLayers) -> int:
        return (len(aux_layers.layers) + aux_layers.final) * self.config.block.hidden

    def _scaled(self, scores: torch.Tensor) -> torch.Tensor:  # [n, vocab] both
        multipliers = self.config.multipliers
        return scale_logits(scores, factor=multipliers.logits, cap=multipliers.logit_cap)

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, vocab]
        """Logits of the whole vocabulary before logits processing; see `widen_logits`."""
        scores = self._parts.head(self._padded(hidden_states))
        return self._scaled(widen_logits(scores[: hidden_states.shape[0]]))

    def own_logits(self, hidden_states: torch.Tensor) -> OwnLogits:  # [n, hidden]
        """Those of the tokens that this rank scores."""
        own = own_logits(self._parts.head, self._padded(hidden_states))
        scores = widen_logits(own.scores[: hidden_states.shape[0]])
        return OwnLogits(scores=self._scaled(scores), first=own.first)

    def _padded(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return pad_rows(hidden_states, max(hidden_states.shape[0], self._min_rows))

    def with_vocabulary(self, size: int) -> "Decoder":
        """The same decoder with an embedding of at least `size` tokens; the added ones are zeros.

        Models of one tokenizer are padded to different sizes, and must accept each other's ids.
        """
        extra = max(size - self.embedding.shape[0], 0)
        embedding = F.pad(self.embedding, (0, 0, 0, extra)) if extra else self.embedding
        parts = replace(self._parts, embedding=embedding)
        return Decoder(
            self.config,
            parts,
            share=self.share,
            ranks=self.ranks,
            adapters=self.adapters,
            storage=self.storage,
        )


def _deepstack(plan: StepPlan) -> Deepstack:
    if not plan.shape.has_embeds:
        return NO_DEEPSTACK
    return Deepstack(
        first=plan.shape.num_decode_query,
        vectors=plan.embeds.deepstack,
        is_embedded=plan.embeds.is_embedded,
    )


def _rotary_positions(plan: StepPlan) -> torch.Tensor:  # [num_query], or [3, num_query] with axes
    positions, shifts = plan.queries.positions, plan.axes.shifts
    return positions + shifts if shifts.shape[1] else positions


def _copy_aux(aux: AuxStates, depth: int, stream: torch.Tensor) -> None:
    """Copy the stream after `depth` layers if a drafter reads it: later layers overwrite it."""
    num_query, width = aux.out.shape[0], stream.shape[1]
    for place, layer in enumerate(aux.layers):
        if layer == depth:
            aux.out[:, place * width : (place + 1) * width] = stream[:num_query]
