"""An EAGLE-3 head in the form that is trained: all rows at once, fed with its own states.

The engine's form is `models/eagle/eagle3.py`; both compute the same. Weights carry the names and
shapes that the engine's loader asks for, so a checkpoint is a head.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_tensors import HEAD, LAYER, MAPS, expected_tensors
from outrider.train.packed_attention import (
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
_JOINING = ("fc.weight", "o_proj.weight", "down_proj.weight")  # they write to the residual
_QUIET = 0.1  # how loud they begin

Weights = Mapping[str, torch.Tensor]


def initial_weights(
    config: HeadConfig, target: PackedTarget, ids: torch.Tensor, *, seed: int
) -> dict[str, nn.Parameter]:
    """A head that at first hands on the deepest state it taps, to the target's own norm and scores.

    Random maps are added to that, small where they join the residual. On SmolLM2-135M (one seed)
    the loss per depth of step 50, of 256 tokens each, was 4.0; with random maps alone, 5.0.
    """
    shapes = expected_tensors(config, target_hidden=target.config.block.hidden).needed
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, torch.Tensor] = {}
    for name in sorted(shapes.keys() - set(MAPS)):
        if "norm" in name:
            values[name] = torch.ones(shapes[name])
        else:
            scale = shapes[name][-1] ** -0.5 * (_QUIET if name.endswith(_JOINING) else 1.0)
            values[name] = torch.randn(shapes[name], generator=generator) * scale
    width = config.width
    values["fc.weight"][:, -width:] += torch.eye(width)
    values[_NORM] = target.final_norm.float().cpu()
    values[HEAD] = target.head.index_select(0, ids.to(target.head.device)).float().cpu()
    device = target.embedding.device
    return {name: nn.Parameter(value.to(device).clone()) for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadInputs:
    """What a head is fed: the target's side of a batch."""

    aux_hidden_states: torch.Tensor  # [batch, length, tapped]
    tokens: torch.Tensor  # [batch, length]
    positions: torch.Tensor  # [batch, length]
    attention: PackedAttention


class TrainingHead:
    """Owns nothing but the form; weights come with every call, in the type to compute in."""

    def __init__(self, config: HeadConfig, *, embedding: torch.Tensor) -> None:
        assert config.aux.is_projected, "a trained head always projects what it taps"
        self._config = config
        self._embedding = embedding  # [vocab, width] the target's, frozen
        self._rotation = PackedRotary(
            config.layer.rope,
            head_dim=config.layer.attention.head_dim,
            device=embedding.device,
        )

    def unroll(
        self, weights: Weights, reading: HeadInputs, *, depth: int
    ) -> Iterator[torch.Tensor]:  # [batch, length, width] each
        """The states that scores are made of, one depth after the other.

        At depth k the row of position t stands at position t + k and reads the token after it.
        """
        state = self._project(weights, reading.aux_hidden_states)
        first: list[KeyValue] = []  # key and value of depth 0, which all rows of a document see
        later: list[KeyValue] = []
        for step in range(depth):
            # The last rows read tokens of the next sequence; they are never trained.
            tokens = reading.tokens.roll(-1 - step, dims=1)
            embedded = F.embedding(tokens, self._embedding)
            turn = self._rotation.at(reading.positions + step, state.dtype)
            query, own, residual = self._look(weights, embedded, state, turn)
            (later if step else first).append(own)
            (seen,) = first
            read = attend_packed(reading.attention, query, seen.key, seen.value, later)
            after = self._rest(weights, join_heads(read), residual)
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

    def _look(
        self,
        weights: Weights,
        embedded: torch.Tensor,  # [batch, length, width]
        state: torch.Tensor,  # [batch, length, width]
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, KeyValue, torch.Tensor]:
        """The query of every row, its own key and value, and its residual."""
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
            key=rotate(key, turn).repeat_interleave(group, 1),
            value=value.repeat_interleave(group, 1),
        )
        return rotate(query, turn), own, normed if config.is_residual_normed else state

    def _rest(
        self, weights: Weights, read: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:  # [batch, length, width]
        stream = residual + F.linear(read, weights[_ATTENTION + "o_proj.weight"])
        x = self._norm(stream, weights[LAYER + "post_attention_layernorm.weight"])
        gate = F.silu(F.linear(x, weights[LAYER + "mlp.gate_proj.weight"]))
        up = F.linear(x, weights[LAYER + "mlp.up_proj.weight"])
        return stream + F.linear(gate * up, weights[LAYER + "mlp.down_proj.weight"])

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms(x, weight, self._config.layer.block.norm_eps)
