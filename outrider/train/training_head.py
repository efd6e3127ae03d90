"""An EAGLE-3 head in the form that is trained: all rows at once, over several draft steps.

`models/eagle/eagle3.py` is the form that the engine runs; both compute the same. Weights have the
names and shapes that the engine's loader expects, so a checkpoint holds a head.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_tensors import HEAD, LAYER, MAPS, expected_tensors
from outrider.train.batches import Anchors
from outrider.train.packed_attention import (
    CosSin,
    KeyValue,
    PackedAttention,
    PackedRotary,
    attend_packed,
    join_heads,
    rms,
    rotate,
    split_heads,
)
from outrider.train.packed_target import PackedTarget

_ATTENTION = LAYER + "self_attn."
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
class _Projected:
    """The inputs of attention at one depth, and the residual of every row."""

    query: torch.Tensor  # [batch, heads, length, head_dim]
    own: KeyValue
    residual: torch.Tensor  # [batch, length, width]


class TrainingHead:
    """The forward pass of a head. Weights are passed with every call, in the compute dtype."""

    def __init__(self, config: HeadConfig, *, embedding: torch.Tensor) -> None:
        assert config.aux.is_projected, "a trained head always has fc.weight"
        self._config = config
        self._embedding = embedding  # [vocab, width] the target's, frozen
        self._rotary = PackedRotary(
            config.layer.rope,
            head_dim=config.layer.attention.head_dim,
            device=embedding.device,
        )

    def draft_logits(
        self, weights: Weights, inputs: HeadInputs, anchors: Anchors, *, depth: int
    ) -> Iterator[torch.Tensor]:  # [trained, draft_vocab] of each depth
        """Logits of the trained rows, one depth after the other."""
        for step, normed in enumerate(self.unroll(weights, inputs, depth=depth)):
            own = normed.flatten(0, 1).index_select(0, anchors.rows[step])
            yield F.linear(own, weights[HEAD])

    def unroll(
        self, weights: Weights, inputs: HeadInputs, *, depth: int
    ) -> Iterator[torch.Tensor]:  # [batch, length, width] each
        """The normalised states that lm_head reads, one depth after the other.

        At depth k the row of position t runs at position t + k and reads the token after it.
        """
        state = self._project(weights, inputs.aux_hidden_states)
        own: list[KeyValue] = []  # of the depths so far
        for step in range(depth):
            # `roll` gives the last rows wrong tokens; those rows are never trained.
            tokens = inputs.tokens.roll(-1 - step, dims=1)
            embedded = F.embedding(tokens, self._embedding)
            rotary = self._rotary.at(inputs.positions + step, state.dtype)
            projected = self._qkv(weights, embedded, state, rotary)
            own.append(projected.own)
            read = attend_packed(inputs.attention, projected.query, own[0], own[1:])
            after = self._output(weights, join_heads(read), projected.residual)
            normed = self._norm(after, weights[_NORM])
            state = normed if self._config.output.is_state_normed else after
            yield normed

    def _project(
        self, weights: Weights, aux_hidden_states: torch.Tensor
    ) -> torch.Tensor:  # [batch, length, width]
        config = self._config.aux
        if config.norm == "each":
            parts = torch.split(aux_hidden_states, config.target_hidden, -1)
            normed = [
                self._norm(part, weights[f"fc_norm.{index}.weight"])
                for index, part in enumerate(parts)
            ]
            aux_hidden_states = torch.cat(normed, -1)
        return F.linear(aux_hidden_states, weights["fc.weight"])

    def _qkv(
        self,
        weights: Weights,
        embedded: torch.Tensor,  # [batch, length, width]
        state: torch.Tensor,  # [batch, length, width]
        rotary: CosSin,
    ) -> _Projected:
        config = self._config.layer
        normed = self._norm(state, weights[LAYER + "hidden_norm.weight"])
        entry = self._norm(embedded, weights[LAYER + "input_layernorm.weight"])
        x = torch.cat([entry, normed], -1)  # [batch, length, 2 * width]
        query, key, value = (
            split_heads(
                F.linear(x, weights[f"{_ATTENTION}{name}.weight"]), config.attention.head_dim
            )
            for name in ("q_proj", "k_proj", "v_proj")
        )
        group = config.attention.heads // config.attention.kv_heads
        own = KeyValue(
            key=rotate(key, rotary).repeat_interleave(group, 1),
            value=value.repeat_interleave(group, 1),
        )
        residual = normed if config.is_residual_normed else state
        return _Projected(query=rotate(query, rotary), own=own, residual=residual)

    def _output(
        self, weights: Weights, read: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:  # [batch, length, width]
        stream = residual + F.linear(read, weights[_ATTENTION + "o_proj.weight"])
        x = self._norm(stream, weights[LAYER + "post_attention_layernorm.weight"])
        gate = F.silu(F.linear(x, weights[LAYER + "mlp.gate_proj.weight"]))
        up = F.linear(x, weights[LAYER + "mlp.up_proj.weight"])
        return stream + F.linear(gate * up, weights[LAYER + "mlp.down_proj.weight"])

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms(x, weight, self._config.layer.block.norm_eps)
