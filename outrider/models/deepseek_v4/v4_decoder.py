"""The forward pass of DeepSeek-V4: a pure function of a plan, the weights and the cache."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.distributed.rank_group import RankGroup
from outrider.models.adapters.adapter_bank import NO_ADAPTERS, AdapterWeights
from outrider.models.decoder import TargetOutput
from outrider.models.deepseek_v4.compressed_cache import (
    CompressedLayout,
    CompressedPool,
    LayerStore,
)
from outrider.models.deepseek_v4.compressed_plan import CompressedPlan
from outrider.models.deepseek_v4.residual_streams import Collapse, Connection, mean_of_streams
from outrider.models.deepseek_v4.v4_attention import V4Attention
from outrider.models.deepseek_v4.v4_blocks import V4Step
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_rotary import TailRotary
from outrider.models.draft_model import AuxLayers
from outrider.models.layers.mlp import FeedForward, FeedStep
from outrider.models.layers.reduced_layers import OwnLogits, own_logits
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.partial_rope import TailRotation
from outrider.ops.sampling.widen_logits import widen_logits
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.plan import StepPlan
from outrider.wire.runner_facts import WeightStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class V4Block:
    """One layer. Each of its two parts reads the residual streams and writes them."""

    attention_streams: Connection
    attention: V4Attention
    feed_streams: Connection
    feed: FeedForward
    ranks: RankGroup

    def __call__(
        self,
        streams: torch.Tensor,  # [num_query, streams, hidden]
        store: LayerStore,
        step: V4Step,
        feed: FeedStep,
    ) -> torch.Tensor:  # [num_query, streams, hidden]
        mixed = self.attention_streams.read(streams)
        y = self.attention(mixed.x, store, step)
        self.ranks.add_up_(y)  # before it is written: every rank has all streams
        streams = self.attention_streams.write(y, streams, mixed)
        mixed = self.feed_streams.read(streams)
        y = self.feed(mixed.x, torch.zeros_like(mixed.x), feed)
        self.ranks.add_up_(y)
        return self.feed_streams.write(y, streams, mixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class V4Parts:
    """All weights of a decoder, ready to compute with."""

    embedding: torch.Tensor  # [vocab, hidden]
    rotaries: tuple[TailRotary, TailRotary]  # of layers without blocks, and with them
    blocks: tuple[V4Block, ...]
    collapse: Collapse
    head: Linear


class V4Decoder:
    """Owns the weights, or a rank's share. `dtype` is that of activations and of the cache."""

    adapters: AdapterWeights = NO_ADAPTERS
    storage: tuple[WeightStorage, ...] = ()

    def __init__(self, config: V4Config, parts: V4Parts, ranks: RankGroup) -> None:
        self.config = config
        self.ranks = ranks
        self.dtype = parts.embedding.dtype
        self._parts = parts

    @property
    def embedding(self) -> torch.Tensor:  # [vocab, hidden]
        return self._parts.embedding

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:  # [n] -> [n, hidden]
        return F.embedding(tokens, self._parts.embedding)

    def layout(self, *, page_size: int, nodes: int) -> CompressedLayout:
        """The layout of its cache, for chains of up to that many nodes."""
        attention = self.config.attention
        return CompressedLayout(
            layers=attention.layers,
            head_dim=attention.heads.head_dim,
            window=attention.window,
            nodes=nodes,
            page_size=page_size,
            dtype=self.dtype,
        )

    def rotate_in_window(self, positions: torch.Tensor) -> TailRotation:  # [n]
        """The rotation of vectors in layers without blocks."""
        return self._parts.rotaries[0].at(positions)

    def forward(
        self, plan: StepPlan, kv: CompressedPool, attention: AttentionPlanner, aux_layers: AuxLayers
    ) -> TargetOutput:
        """The final hidden state of every query token, and the aux hidden states of `aux_layers`.

        A layer's is the mean of its streams, as heads for this model are trained.
        """
        del attention  # all that layers need of it is in the plan
        parts, queries = self._parts, plan.queries
        step = self._step(plan, kv.layout.page_size)
        feed = FeedStep(tokens=queries.tokens, slots=queries.slots, page_size=step.page_size)
        embedded = self.embed(queries.tokens)
        streams = embedded[:, None].expand(-1, self.config.streams.num, -1).contiguous()
        means = {0: embedded}
        for number, (block, store) in enumerate(zip(parts.blocks, kv.layers, strict=True), start=1):
            streams = block(streams, store, step, feed)
            if number in aux_layers.layers:
                means[number] = mean_of_streams(streams)
        hidden_states = parts.collapse(streams)
        aux = [means[layer] for layer in aux_layers.layers]
        aux += [hidden_states] if aux_layers.final else []
        aux += [streams.flatten(1)] if aux_layers.streams else []
        return TargetOutput(hidden_states=hidden_states, aux_hidden_states=_join(aux, embedded))

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, vocab]
        """Scores of every token, in float32 on a CPU; on a GPU as the head gives them."""
        scores = self._parts.head(hidden_states)
        return widen_logits(scores)

    def own_logits(self, hidden_states: torch.Tensor) -> OwnLogits:  # [n, hidden]
        """Those of the tokens that this rank scores."""
        own = own_logits(self._parts.head, hidden_states)
        return OwnLogits(scores=widen_logits(own.scores), first=own.first)

    def _step(self, plan: StepPlan, page_size: int) -> V4Step:
        assert isinstance(plan.attention, CompressedPlan)
        in_window, in_blocks = self._parts.rotaries
        positions, index = plan.queries.positions, plan.attention.index
        return V4Step(
            index=index,
            page_size=page_size,
            in_window=in_window.at(positions),
            in_blocks=in_blocks.at(positions),
            at_starts=tuple(in_blocks.at(block.starts) for block in index.blocks),
        )


def _join(states: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:  # [n, ...] all
    """All states side by side; without any, of no channels."""
    if len(states) == 1:
        return states[0]
    return torch.cat(states, dim=1) if states else like[:, :0]
