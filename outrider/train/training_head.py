"""An EAGLE-3 head in the form that is trained: all rows at once, over several draft steps.

`models/eagle/eagle3.py` is the form that the engine runs; both compute the same. Weights have the
names and shapes that the engine's loader expects, so a checkpoint holds a head.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_tensors import (
    HEAD,
    MAPS,
    MASK_STATE,
    expected_tensors,
    layer_prefix,
)
from outrider.train.batches import Anchors
from outrider.train.decoder_layer import (
    LayerWeights,
    after_attention,
    before_attention,
    layer_weights,
    project_heads,
)
from outrider.train.packed_attention import (
    CosSin,
    KeyValue,
    PackedAttention,
    PackedRotary,
    attend_packed,
    rms,
)
from outrider.train.packed_target import PackedTarget
from outrider.train.training_device import TrainingDevice

_NORM = "norm.weight"
_RESIDUAL_WRITERS = ("fc.weight", "o_proj.weight", "down_proj.weight")
_RESIDUAL_SCALE = 0.1  # of their random initial weights

Weights = Mapping[str, torch.Tensor]


def initial_weights(
    config: HeadConfig, target: PackedTarget, ids: torch.Tensor, *, seed: int
) -> dict[str, nn.Parameter]:
    """Weights that pass the deepest aux state on to the target's own final norm and lm_head.

    Random projections are added, small where they write to the residual stream. On SmolLM2-135M
    (one seed, 256 tokens per step) the loss per depth at step 50 was 4.0; with random projections
    alone it was 5.0.
    """
    shapes = expected_tensors(config, target_hidden=target.config.block.hidden).needed
    values, width = random_weights(shapes, seed=seed), config.width
    values["fc.weight"][:, -width:] += torch.eye(width)
    values[_NORM] = target.final_norm.float().cpu()
    values[HEAD] = target.head.index_select(0, ids.to(target.head.device)).float().cpu()
    device = target.embedding.device
    return {name: nn.Parameter(value.to(device).clone()) for name, value in values.items()}


def random_weights(shapes: Mapping[str, tuple[int, ...]], *, seed: int) -> dict[str, torch.Tensor]:
    """Norms of ones and random projections, small where they write to the residual stream."""
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, torch.Tensor] = {}
    for name in sorted(shapes.keys() - set(MAPS)):
        if "norm" in name:
            values[name] = torch.ones(shapes[name])
        else:
            scale = shapes[name][-1] ** -0.5 * (
                _RESIDUAL_SCALE if name.endswith(_RESIDUAL_WRITERS) else 1.0
            )
            values[name] = torch.randn(shapes[name], generator=generator) * scale
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadInputs:
    """What a head reads: one batch, and the target's states of it."""

    aux_hidden_states: torch.Tensor  # [batch, length, aux layers * hidden]
    tokens: torch.Tensor  # [batch, length]
    documents: torch.Tensor  # [batch, length] number within the sequence
    positions: torch.Tensor  # [batch, length]
    attention: PackedAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLogits:
    """What a head says about one depth of the rows that are trained."""

    tokens: torch.Tensor  # [trained, draft_vocab]
    confidence: torch.Tensor  # [trained, 1] of the chance of its draft; [trained, 0] without one


class TrainingHead:
    """The forward pass of a head. Weights are passed with every call, in the compute dtype.

    EAGLE-3 reads its own last state and the next token at every depth. P-EAGLE reads masks instead,
    so its depths do not wait for each other when it drafts.
    """

    def __init__(
        self, config: HeadConfig, device: TrainingDevice, *, embedding: torch.Tensor
    ) -> None:
        assert config.aux.is_projected, "a trained head always has fc.weight"
        self._config = config
        self._embedding = embedding  # [vocab, width] the target's, frozen
        self._rotary = PackedRotary(
            config.layer.rope,
            head_dim=config.layer.plain_attention.head_dim,
            device=embedding.device,
        )
        self._enter, self._project = device.fused(_enter_first), device.fused(before_attention)
        self._output = device.fused(after_attention)

    def draft_logits(
        self, weights: Weights, inputs: HeadInputs, anchors: Anchors, *, depth: int
    ) -> Iterator[DraftLogits]:
        """Logits of the trained rows, one depth after the other."""
        for step, normed in enumerate(self.unroll(weights, inputs, depth=depth)):
            own = normed.flatten(0, 1).index_select(0, anchors.rows[step])
            yield DraftLogits(tokens=F.linear(own, weights[HEAD]), confidence=own[:, :0])

    def unroll(
        self, weights: Weights, inputs: HeadInputs, *, depth: int
    ) -> Iterator[torch.Tensor]:  # [batch, length, width] each
        """The normalised states that lm_head reads, one depth after the other.

        At depth k the row of position t runs at position t + k and reads the token after it.
        """
        prefixes = map(layer_prefix, range(self._config.num_layers))
        layers = [_OwnLayer(weights=layer_weights(weights, each), past=[]) for each in prefixes]
        state = self._fuse_aux(weights, inputs.aux_hidden_states)
        for step in range(depth):
            embedded, state = self._entry(weights, inputs, step, state)
            rotary = self._rotary.at(inputs.positions + step, state.dtype)
            after = self._run_layers(layers, embedded, state, rotary, inputs.attention)
            normed = self._norm(after, weights[_NORM])
            state = normed if self._config.output.is_state_normed else after
            yield normed

    def _entry(
        self,
        weights: Weights,
        inputs: HeadInputs,
        step: int,
        state: torch.Tensor,  # [batch, length, width] of the depth before
    ) -> tuple[torch.Tensor, torch.Tensor]:  # [batch, length, width] both
        """The embeddings and states that rows read at a depth."""
        blocks = self._config.blocks
        if step and blocks is not None:  # P-EAGLE: all masks are alike
            mask = self._fuse_aux(weights, weights[MASK_STATE])
            return self._embedding[blocks.block.mask_token].expand_as(state), mask.expand_as(state)
        # `roll` gives the last rows wrong tokens; those rows are never trained.
        return F.embedding(inputs.tokens.roll(-1 - step, dims=1), self._embedding), state

    def _fuse_aux(
        self,
        weights: Weights,
        aux_hidden_states: torch.Tensor,  # [..., aux layers * hidden]
    ) -> torch.Tensor:  # [..., width]
        config = self._config.aux
        if config.norm == "each":
            parts = torch.split(aux_hidden_states, config.target_hidden, -1)
            normed = [
                self._norm(part, weights[f"fc_norm.{index}.weight"])
                for index, part in enumerate(parts)
            ]
            aux_hidden_states = torch.cat(normed, -1)
        return F.linear(aux_hidden_states, weights["fc.weight"])

    def _run_layers(
        self,
        layers: Sequence["_OwnLayer"],
        embedded: torch.Tensor,  # [batch, length, width]
        state: torch.Tensor,  # [batch, length, width]
        rotary: CosSin,
        attention: PackedAttention,
    ) -> torch.Tensor:  # [batch, length, width]
        """The stream after all layers at one depth."""
        config = self._config.layer
        group = config.plain_attention.heads // config.plain_attention.kv_heads
        cos, sin, eps = rotary.cos, rotary.sin, config.block.norm_eps
        query, key, value, normed = self._enter(
            layers[0].weights, embedded, state, cos, sin, group=group, eps=eps
        )
        stream = normed if config.is_residual_normed else state
        stream = self._attend(layers[0], query, KeyValue(key=key, value=value), stream, attention)
        for each in layers[1:]:
            norm = self._config.later_norms[0]
            query, key, value = self._project(
                each.weights, stream, cos, sin, norm=norm, group=group, eps=eps
            )
            stream = self._attend(each, query, KeyValue(key=key, value=value), stream, attention)
        return stream

    def _attend(
        self,
        layer: "_OwnLayer",
        query: torch.Tensor,  # [batch, heads, length, head_dim]
        own: KeyValue,
        stream: torch.Tensor,  # [batch, length, width]
        attention: PackedAttention,
    ) -> torch.Tensor:  # [batch, length, width]
        layer.past.append(own)
        read = attend_packed(attention, query, layer.past[0], layer.past[1:])
        return self._output(layer.weights, stream, read, eps=self._config.layer.block.norm_eps)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms(x, weight, self._config.layer.block.norm_eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnLayer:
    """A layer of the head, and its keys and values of the depths so far."""

    weights: LayerWeights
    past: list[KeyValue]


def _enter_first(
    weights: LayerWeights,
    embedded: torch.Tensor,  # [batch, length, width]
    state: torch.Tensor,  # [batch, length, width]
    cos: torch.Tensor,  # [batch, 1, length, head_dim]
    sin: torch.Tensor,  # [batch, 1, length, head_dim]
    *,
    group: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of the first layer, [batch, heads, length, head_dim] each, and the
    normalised state.
    """
    normed = rms(state, weights["hidden_norm.weight"], eps)
    entry = rms(embedded, weights["input_layernorm.weight"], eps)
    x = torch.cat([entry, normed], -1)  # [batch, length, 2 * width]
    return *project_heads(weights, x, cos, sin, group=group, eps=eps), normed
