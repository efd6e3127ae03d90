"""The target over packed sequences: the states that a head reads and the tokens it must predict.

A plain forward pass without KV cache, for dense families of the engine, from the same files.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from outrider.models.decoder_check import check_tensors
from outrider.models.model_config import ModelConfig, read_config
from outrider.models.safetensors_reader import Checkpoint
from outrider.train.packed_attention import (
    CosSin,
    PackedAttention,
    PackedRotary,
    join_heads,
    rms,
    rotate,
    split_heads,
)

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_CHUNK = 4096  # rows whose logits are in memory at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedHiddenStates:
    """The hidden states of the target that training uses."""

    aux_hidden_states: torch.Tensor  # [batch, length, aux layers * hidden]
    hidden_states: torch.Tensor  # [batch, length, hidden] final and normalised


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The target's distribution at some rows, over the tokens that the head can propose."""

    probabilities: torch.Tensor  # [teacher, draft_vocab] float32; softmax over the whole vocabulary
    best: torch.Tensor  # [teacher] the target's likeliest token of the whole vocabulary
    is_known: torch.Tensor  # [teacher] whether the head can propose that token


class PackedTarget:
    """Owns the frozen weights of the target."""

    def __init__(self, folder: Path, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = read_config(folder)
        self.config.check_like_llama("training")
        self._weights = _read(folder, self.config, dtype=dtype, device=device)
        head_dim = self.config.plain_attention.head_dim
        self._rotary = PackedRotary(self.config.rope, head_dim=head_dim, device=device)

    @property
    def embedding(self) -> torch.Tensor:  # [vocab, hidden]
        return self._weights[_EMBEDDING]

    @property
    def head(self) -> torch.Tensor:  # [vocab, hidden]
        return self._weights[_EMBEDDING if self.config.is_tied else _HEAD]

    @property
    def final_norm(self) -> torch.Tensor:  # [hidden]
        return self._weights["model.norm.weight"]

    @torch.no_grad()
    def forward(
        self,
        tokens: torch.Tensor,  # [batch, length]
        positions: torch.Tensor,  # [batch, length]
        attention: PackedAttention,
        aux_layers: Iterable[int],  # k: the residual stream after k layers
    ) -> PackedHiddenStates:
        stream = F.embedding(tokens, self.embedding)
        rotary = self._rotary.at(positions, stream.dtype)
        streams, wanted = {0: stream}, tuple(aux_layers)
        for layer in range(self.config.num_layers):
            stream = self._layer(f"model.layers.{layer}.", stream, rotary, attention)
            if layer + 1 in wanted:
                streams[layer + 1] = stream
        return PackedHiddenStates(
            aux_hidden_states=torch.cat([streams[layer] for layer in wanted], -1),
            hidden_states=rms(stream, self.final_norm, self.config.block.norm_eps),
        )

    @torch.no_grad()
    def teacher(
        self,
        hidden_states: torch.Tensor,  # [teacher, hidden]
        ids: torch.Tensor,  # [draft_vocab] the target's ids of the head's tokens
    ) -> Teacher:
        """The distribution after each row. Runs in chunks, because logits are large."""
        can_draft = torch.zeros(self.head.shape[0], dtype=torch.bool, device=ids.device)
        can_draft[ids] = True
        shares, best = [], []
        for rows in torch.split(hidden_states, _CHUNK):
            logits = F.linear(rows, self.head)  # [chunk, vocab]
            log_sum = logits.float().logsumexp(-1, keepdim=True)
            shares.append((logits.index_select(1, ids).float() - log_sum).exp_())
            best.append(logits.argmax(-1))
        top = torch.cat(best)
        return Teacher(probabilities=torch.cat(shares), best=top, is_known=can_draft[top])

    def _layer(
        self, layer: str, stream: torch.Tensor, rotary: CosSin, attention: PackedAttention
    ) -> torch.Tensor:  # [batch, length, hidden]
        weights, eps = self._weights, self.config.block.norm_eps
        x = rms(stream, weights[layer + "input_layernorm.weight"], eps)
        read = self._attend(layer + "self_attn.", x, rotary, attention)
        stream = stream + F.linear(read, weights[layer + "self_attn.o_proj.weight"])
        x = rms(stream, weights[layer + "post_attention_layernorm.weight"], eps)
        gate = F.silu(F.linear(x, weights[layer + "mlp.gate_proj.weight"]))
        up = F.linear(x, weights[layer + "mlp.up_proj.weight"])
        return stream + F.linear(gate * up, weights[layer + "mlp.down_proj.weight"])

    def _attend(
        self, prefix: str, x: torch.Tensor, rotary: CosSin, attention: PackedAttention
    ) -> torch.Tensor:  # [batch, length, heads * head_dim]
        config, weights = self.config, self._weights
        query, key, value = (
            split_heads(
                F.linear(x, weights[f"{prefix}{name}.weight"], weights.get(f"{prefix}{name}.bias")),
                config.plain_attention.head_dim,
            )
            for name in ("q_proj", "k_proj", "v_proj")
        )
        if config.family.has_head_norm:
            query = rms(query, weights[prefix + "q_norm.weight"], config.block.norm_eps)
            key = rms(key, weights[prefix + "k_norm.weight"], config.block.norm_eps)
        group = config.plain_attention.heads // config.plain_attention.kv_heads
        key = rotate(key, rotary).repeat_interleave(group, 1)
        value = value.repeat_interleave(group, 1)
        return join_heads(attention.attend(rotate(query, rotary), key, value))


def _read(
    folder: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device
) -> dict[str, torch.Tensor]:
    with Checkpoint(folder, config.family.nesting) as checkpoint:
        names = check_tensors(checkpoint, config)
        return {name: checkpoint.read(name).to(device, dtype) for name in names}
