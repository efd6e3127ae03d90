"""The draft module inside a DeepSeek-V4 checkpoint: one layer with a sliding window, whose residual
streams are made of a token's embedding and the streams of the token before.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from outrider.config.engine_config import Arithmetic
from outrider.errors import ConfigError
from outrider.models.cut_head import head_cut
from outrider.models.deepseek_v4.compressed_cache import CompressedLayout, CompressedPool
from outrider.models.deepseek_v4.compressed_plan import CompressedPlan
from outrider.models.deepseek_v4.compression import NoBlocks
from outrider.models.deepseek_v4.residual_streams import Collapse
from outrider.models.deepseek_v4.v4_blocks import V4Step
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_decoder import V4Block, V4Decoder
from outrider.models.deepseek_v4.v4_loader import V4Builder
from outrider.models.deepseek_v4.v4_tensors import (
    ALSO_STORED,
    EMBEDDING,
    HEAD,
    Shape,
    module_prefix,
    stored_modules,
    stored_names,
    v4_module_shapes,
)
from outrider.models.draft_model import AuxLayers, ModelFacts
from outrider.models.layers.mlp import FeedStep
from outrider.models.model_config import AnyAttention, AttentionConfig
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.tensor_cut import WHOLE
from outrider.models.tensor_source import RenamedTensors, TensorSource
from outrider.ops.linear.choose_linear import WeightType
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.sampling.widen_logits import widen_logits
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class V4ModuleParts:
    """All weights of a module; embedding and head are usually the target's."""

    embedding: torch.Tensor  # [vocab, hidden]
    token_norm: Norm
    token_projection: Linear
    stream_norm: Norm
    stream_projection: Linear
    block: V4Block
    collapse: Collapse
    score: Callable[[torch.Tensor], torch.Tensor]  # [n, hidden] normalised -> [n, vocab]


@dataclass(frozen=True, slots=True, kw_only=True)
class V4ModuleFacts(ModelFacts):
    """The facts of a module: it caches a ring buffer per row for its window, and no pages."""

    window: int

    @property
    def heads(self) -> Sequence[AnyAttention]:
        return ()  # its attention does not run on the shared backend

    def layout(self, *, page_size: int, dtype: torch.dtype, nodes: int) -> CompressedLayout:
        return CompressedLayout(
            layers=(NoBlocks(),),
            head_dim=self.attention.width,
            window=self.window,
            nodes=nodes,
            page_size=page_size,
            dtype=dtype,
        )


class V4Module:
    """A draft model whose state is all residual streams of a token, concatenated."""

    def __init__(self, target: V4Decoder, parts: V4ModuleParts) -> None:
        self._target = target
        self._parts = parts
        config, heads = target.config, target.config.attention.heads
        self.target_ids = torch.arange(config.vocab_size, device=target.embedding.device)
        self.facts = V4ModuleFacts(
            aux_layers=AuxLayers(streams=True),
            width=config.streams.num * config.hidden,
            lead=0,
            num_layers=1,
            attention=AttentionConfig(heads=heads.heads, kv_heads=1, head_dim=heads.head_dim),
            begins_with_forward=False,
            window=config.attention.window,
        )

    def forward(
        self,
        plan: StepPlan,
        state: torch.Tensor,  # [num_query, width]
        kv: CompressedPool,
        attention: AttentionPlanner,
    ) -> torch.Tensor:  # [num_query, width]
        """Run the query tokens of a plan; writes their vectors to the ring buffers."""
        del attention  # all that the layer needs of it is in the plan
        parts, queries, target = self._parts, plan.queries, self._target
        assert isinstance(plan.attention, CompressedPlan)
        page_size = kv.layout.page_size
        rotation = target.rotate_in_window(queries.positions)
        step = V4Step(
            index=plan.attention.index,
            page_size=page_size,
            in_window=rotation,
            in_blocks=rotation,
            at_starts=(),
        )
        feed = FeedStep(tokens=queries.tokens, slots=queries.slots, page_size=page_size)
        streams = self._join(F.embedding(queries.tokens, parts.embedding), state)
        (store,) = kv.layers
        return parts.block(streams, store, step, feed).flatten(1)

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, width] streams, which are its states
        kv: CompressedPool,
        attention: AttentionPlanner,
    ) -> torch.Tensor:  # [num_query, width]
        return self.forward(plan, aux_hidden_states, kv, attention)

    def logits(self, state: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, vocab]
        streams = state.view(state.shape[0], self._target.config.streams.num, -1)
        return self._parts.score(self._parts.collapse(streams))

    def _join(self, embedded: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The streams that the layer reads: [num_query, streams, hidden]."""
        parts, num_query, num = self._parts, state.shape[0], self._target.config.streams.num
        single = state.reshape(num_query * num, -1)
        before = parts.stream_projection(parts.stream_norm(single)).view(num_query, num, -1)
        return before + parts.token_projection(parts.token_norm(embedded))[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class V4FoundModules:
    """The draft modules of a folder: the first is complete, and every tensor of it fits."""

    num: int
    stored: dict[str, str]  # where the tensors of the first are found, by the hub's names


def find_v4_modules(folder: Path, config: V4Config, checkpoint: Checkpoint) -> V4FoundModules:
    """The modules that an open folder holds; the first must match the config exactly."""
    found, prefix = stored_modules(checkpoint.names), module_prefix(0)
    stored = {name: at for name, at in found.items() if name.startswith(prefix)}
    if not stored:
        raise ConfigError(
            f"{folder} holds no draft module (no tensor begins with {prefix}); use --draft "
            "ngram, or an export that kept them"
        )
    table: Shape = (config.vocab_size, config.hidden)
    also = {prefix + name for name in ALSO_STORED.values()} & stored.keys()
    shapes, own = v4_module_shapes(config, 0) | dict.fromkeys(also, table), set(stored.values())
    checkpoint.check(
        {stored.get(name, name): shape for name, shape in shapes.items()},
        among=lambda name: name in own,
    )
    return V4FoundModules(num=len({name.split(".")[1] for name in found}), stored=stored)


def count_v4_modules(folder: Path, config: V4Config) -> int:
    """How many draft modules a folder holds; refuses what `find_v4_modules` does."""
    with Checkpoint(folder) as checkpoint:
        return find_v4_modules(folder, config, checkpoint).num


def load_v4_module(
    folder: Path, target: V4Decoder, *, dtype: WeightType, arithmetic: Arithmetic = "fast"
) -> V4Module:
    """The first draft module in the target's folder; its tensors must match the config exactly."""
    with Checkpoint(folder) as checkpoint:
        found = find_v4_modules(folder, target.config, checkpoint)
        stored = stored_names(checkpoint.names) | found.stored
        source = RenamedTensors(checkpoint, stored.__getitem__)
        return build_v4_module(
            source, target, own=_own(found, source, target), dtype=dtype, arithmetic=arithmetic
        )


def _own(found: V4FoundModules, source: TensorSource, target: V4Decoder) -> set[str]:
    """The target's tensors of which the first module stores different values.

    Of a head, each rank compares the rows that it scores; see `module_loader`.
    """
    prefix, rows = module_prefix(0), head_cut(target.config.vocab_size, target.ranks)
    cuts = {EMBEDDING: WHOLE, HEAD: rows}
    return {
        shared
        for shared, name in ALSO_STORED.items()
        if prefix + name in found.stored
        and not torch.equal(
            source.read(prefix + name, cuts[shared]), source.read(shared, cuts[shared])
        )
    }


def build_v4_module(
    source: TensorSource,
    target: V4Decoder,
    *,
    own: Collection[str] = (),  # the target's tensors of which the module stores different values
    dtype: WeightType,
    arithmetic: Arithmetic = "fast",
) -> V4Module:
    """A module from tensors with checked shapes, by the names of the hub."""
    config, device, prefix = target.config, target.embedding.device, module_prefix(0)
    builder = V4Builder(
        config, source, dtype=dtype, device=device, arithmetic=arithmetic, ranks=target.ranks
    )
    embedding, head = (prefix + ALSO_STORED[name] for name in (EMBEDDING, HEAD))
    parts = V4ModuleParts(
        embedding=builder.read(embedding) if EMBEDDING in own else target.embedding,
        token_norm=builder.norm(prefix + "enorm.weight"),
        token_projection=builder.linear(prefix + "e_proj.weight"),
        stream_norm=builder.norm(prefix + "hnorm.weight"),
        stream_projection=builder.linear(prefix + "h_proj.weight"),
        block=builder.block(prefix, NoBlocks(), is_hashed=False),
        collapse=builder.collapse(prefix),
        score=_scores_of(builder.head(head)) if HEAD in own else target.logits,
    )
    return V4Module(target, parts)


def _scores_of(head: Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    """Scores as the target gives them: in float32 on a CPU."""

    def score(hidden: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, vocab]
        scores = head(hidden)
        return widen_logits(scores)

    return score
