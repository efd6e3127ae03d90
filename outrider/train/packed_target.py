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
from outrider.train.decoder_layer import (
    LayerWeights,
    after_attention,
    before_attention,
    layer_weights,
)
from outrider.train.packed_attention import CosSin, PackedAttention, PackedRotary, rms
from outrider.train.training_device import TrainingDevice

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

    # [teacher, draft_vocab] softmax over the whole vocabulary, in the target's dtype: every depth
    # reads it several times.
    probabilities: torch.Tensor
    best: torch.Tensor  # [teacher] the target's likeliest token of the whole vocabulary
    is_known: torch.Tensor  # [teacher] whether the head can propose that token


class PackedTarget:
    """Owns the frozen weights of the target."""

    def __init__(self, folder: Path, device: TrainingDevice) -> None:
        self.config = read_config(folder)
        self.config.check_like_llama("training")
        weights = _read(folder, self.config, dtype=device.dtype, device=device.device)
        prefixes = [f"model.layers.{layer}." for layer in range(self.config.num_layers)]
        self._layers = [layer_weights(weights, prefix) for prefix in prefixes]
        self._weights = weights
        head_dim = self.config.plain_attention.head_dim
        self._rotary = PackedRotary(self.config.rope, head_dim=head_dim, device=device.device)
        self._project, self._output = device.fused(before_attention), device.fused(after_attention)
        self._distribution = device.fused(_distribution, is_ragged=True)

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
        for number, weights in enumerate(self._layers, start=1):
            stream = self._layer(weights, stream, rotary, attention)
            if number in wanted:
                streams[number] = stream
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
            share, likeliest = self._distribution(F.linear(rows, self.head), ids)
            shares.append(share)
            best.append(likeliest)
        top = torch.cat(best)
        return Teacher(probabilities=torch.cat(shares), best=top, is_known=can_draft[top])

    def _layer(
        self,
        weights: LayerWeights,
        stream: torch.Tensor,  # [batch, length, hidden]
        rotary: CosSin,
        attention: PackedAttention,
    ) -> torch.Tensor:  # [batch, length, hidden]
        config, eps = self.config.plain_attention, self.config.block.norm_eps
        query, key, value = self._project(
            weights,
            stream,
            rotary.cos,
            rotary.sin,
            norm="input_layernorm",
            group=config.heads // config.kv_heads,
            eps=eps,
        )
        return self._output(weights, stream, attention.attend(query, key, value), eps=eps)


def _distribution(
    logits: torch.Tensor,  # [rows, vocab]
    ids: torch.Tensor,  # [draft_vocab]
) -> tuple[torch.Tensor, torch.Tensor]:  # [rows, draft_vocab], [rows]
    """The target's probabilities of the tokens that can be drafted, and its likeliest token."""
    log_sum = logits.float().logsumexp(-1, keepdim=True)
    shares = (logits.index_select(1, ids).float() - log_sum).exp()
    return shares.to(logits.dtype), logits.argmax(-1)


def _read(
    folder: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device
) -> dict[str, torch.Tensor]:
    with Checkpoint(folder, config.family.nesting) as checkpoint:
        names = check_tensors(checkpoint, config)
        return {name: checkpoint.read(name).to(device, dtype) for name in names}
