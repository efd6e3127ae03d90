"""DSpark inside a DeepSeek-V4 checkpoint: a few layers like the target's that draft a block.

Their context is made of the target's states, the mean of its residual streams after some layers.
The tensors lie under `mtp.`, where other folders have a draft module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider.config.engine_config import Arithmetic
from outrider.errors import ConfigError
from outrider.models.block_model import BlockModel, DraftBlock, SlotPlans
from outrider.models.deepseek_v4.compressed_cache import CompressedPool
from outrider.models.deepseek_v4.compressed_plan import CompressedPlan
from outrider.models.deepseek_v4.compression import NoBlocks
from outrider.models.deepseek_v4.dspark_cache import DSparkLayout
from outrider.models.deepseek_v4.dspark_config import V4DSparkConfig
from outrider.models.deepseek_v4.residual_streams import Collapse
from outrider.models.deepseek_v4.v4_blocks import V4Step
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_decoder import V4Block, V4Decoder
from outrider.models.deepseek_v4.v4_loader import V4Builder
from outrider.models.deepseek_v4.v4_tensors import (
    MAIN_NORM,
    MAIN_PROJECTION,
    dspark_shapes,
    module_prefix,
    stored_modules,
)
from outrider.models.dflash.dflash_tensors import CONFIDENCE, MARKOV_FROM, MARKOV_TO
from outrider.models.dflash.markov_head import ConfidenceHead, MarkovHead
from outrider.models.draft_model import AuxLayers, ModelFacts
from outrider.models.layers.mlp import FeedStep
from outrider.models.model_config import AnyAttention, AttentionConfig
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.tensor_source import RenamedTensors, TensorSource
from outrider.ops.linear.choose_linear import WeightType
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class V4DSparkParts:
    """All weights. Embedding and head are the target's."""

    projection: Linear  # [aux -> hidden]
    context_norm: Norm
    blocks: tuple[V4Block, ...]
    collapse: Collapse
    markov: MarkovHead
    confidence: ConfidenceHead | None


@dataclass(frozen=True, slots=True, kw_only=True)
class V4DSparkFacts(ModelFacts):
    """The facts of the drafter: it caches a ring buffer per row and layer, and no pages."""

    window: int  # tokens before a block that it reads

    @property
    def heads(self) -> Sequence[AnyAttention]:
        return ()  # its attention does not run on the shared backend

    def layout(self, *, page_size: int, dtype: torch.dtype, nodes: int) -> DSparkLayout:
        return DSparkLayout(
            layers=(NoBlocks(),) * self.num_layers,
            head_dim=self.attention.width,
            window=self.window + 1,
            nodes=nodes,
            page_size=page_size,
            dtype=dtype,
        )


class V4DSpark(BlockModel[CompressedPool, AttentionPlanner]):
    """All slots read the last tokens before the block, and each other. A slot predicts the next
    token; the token before adds to its logits.
    """

    is_conditional = True
    catch_up_attends = True  # the plan says which slots of ring buffers are written

    def __init__(self, target: V4Decoder, dspark: V4DSparkConfig, parts: V4DSparkParts) -> None:
        config, heads = target.config, target.config.attention.heads
        facts = V4DSparkFacts(
            aux_layers=AuxLayers(layers=dspark.layers),
            width=config.hidden,
            lead=0,
            num_layers=dspark.num_stages,
            attention=AttentionConfig(heads=heads.heads, kv_heads=1, head_dim=heads.head_dim),
            begins_with_forward=True,
            window=config.attention.window,
        )
        block = DraftBlock(
            size=dspark.block_size, first=0, is_causal=False, mask_token=dspark.mask_token
        )
        ids = torch.arange(config.vocab_size, device=target.embedding.device)
        super().__init__(facts, block, ids)
        self._target = target
        self._parts = parts

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, aux]
        kv: CompressedPool,
        attention: AttentionPlanner,
    ) -> torch.Tensor:  # [num_query, hidden]
        del attention  # all that layers need of it is in the plan
        parts, step = self._parts, self._step(plan, kv)
        context = parts.context_norm(parts.projection(aux_hidden_states))
        for block, store in zip(parts.blocks, kv.layers, strict=True):
            block.attention.write_window(context, store, step)
        return context

    def forward_block(
        self,
        slots: SlotPlans,
        states: torch.Tensor,
        kv: CompressedPool,
        attention: AttentionPlanner,
    ) -> torch.Tensor:  # [rows, slots, hidden] before the final norm
        del attention
        plan, queries, step = slots.plan, slots.plan.queries, self._step(slots.plan, kv)
        feed = FeedStep(tokens=queries.tokens, slots=queries.slots, page_size=step.page_size)
        embedded = self._target.embed(queries.tokens)
        num = self._target.config.streams.num
        streams = embedded[:, None].expand(-1, num, -1).contiguous()
        for block, store in zip(self._parts.blocks, kv.layers, strict=True):
            streams = block(streams, store, step, feed)
        return self._parts.collapse.mix(streams).view(states.shape[0], plan.shape.nodes, -1)

    def logits(self, states: torch.Tensor, first: int) -> torch.Tensor:
        del first
        hidden_states = self._parts.collapse.normalise(states.flatten(0, 1))
        return self._target.logits(hidden_states).view(*states.shape[:2], -1)

    def bias(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self._parts.markov.bias(states, tokens)

    def confidence(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor | None:
        if self._parts.confidence is None:
            return None
        return self._parts.confidence.logprob(states, self._parts.markov.vector(tokens))

    def _step(self, plan: StepPlan, kv: CompressedPool) -> V4Step:
        assert isinstance(plan.attention, CompressedPlan)
        rotation = self._target.rotate_in_window(plan.queries.positions)
        return V4Step(
            index=plan.attention.index,
            page_size=kv.layout.page_size,
            in_window=rotation,
            in_blocks=rotation,
            at_starts=(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDSpark:
    """The drafter of a folder: every tensor is there and fits."""

    source: TensorSource  # its tensors by the names of the hub
    has_confidence: bool  # peers can do without this head, and some exports leave it out


def find_dspark(config: V4Config, dspark: V4DSparkConfig, checkpoint: Checkpoint) -> FoundDSpark:
    """The drafter that an open folder holds; its tensors must match the config exactly."""
    found = stored_modules(checkpoint.names)
    if not found:
        raise ConfigError(
            "config.json describes a DSpark drafter, and the folder holds none (no tensor begins "
            f"with {module_prefix(0)}); use --draft ngram, or an export that kept it"
        )
    confidence = _confidence_name(dspark)
    shapes, own = dspark_shapes(config, dspark), set(found.values())
    checkpoint.check(
        {
            found.get(name, name): shape
            for name, shape in shapes.items()
            if name != confidence or name in found
        },
        among=lambda name: name in own,
    )
    source = RenamedTensors(checkpoint, found.__getitem__)
    return FoundDSpark(source=source, has_confidence=confidence in found)


def load_v4_dspark(
    folder: Path,
    dspark: V4DSparkConfig,
    target: V4Decoder,
    *,
    dtype: WeightType,
    arithmetic: Arithmetic = "fast",
) -> V4DSpark:
    """The drafter in the target's folder."""
    with Checkpoint(folder) as checkpoint:
        found = find_dspark(target.config, dspark, checkpoint)
        builder = V4Builder(
            target.config,
            found.source,
            dtype=dtype,
            device=target.embedding.device,
            arithmetic=arithmetic,
            ranks=target.ranks,
        )
        return V4DSpark(target, dspark, _read_parts(dspark, found, builder))


def _read_parts(dspark: V4DSparkConfig, found: FoundDSpark, builder: V4Builder) -> V4DSparkParts:
    prefixes = [module_prefix(stage) for stage in range(dspark.num_stages)]
    first, last = prefixes[0], prefixes[-1]
    return V4DSparkParts(
        projection=builder.linear(first + MAIN_PROJECTION),
        context_norm=builder.norm(first + MAIN_NORM),
        blocks=tuple(builder.block(prefix, NoBlocks(), is_hashed=False) for prefix in prefixes),
        collapse=builder.collapse(last),
        markov=MarkovHead(
            vectors=builder.read(last + MARKOV_FROM),
            score=builder.linear(last + MARKOV_TO),
            gate=None,
        ),
        confidence=_read_confidence(dspark, builder) if found.has_confidence else None,
    )


def _read_confidence(dspark: V4DSparkConfig, builder: V4Builder) -> ConfidenceHead:
    weight = builder.read_wide(_confidence_name(dspark)).flatten()
    return ConfidenceHead(weight=weight, bias=weight.new_zeros(1), reads_token=True)


def _confidence_name(dspark: V4DSparkConfig) -> str:
    return f"{module_prefix(dspark.num_stages - 1)}{CONFIDENCE}.weight"
