"""A block-parallel head in the form that is trained: many blocks of a sequence at once.

`models/dflash/dflash_head.py` is the form that the engine runs; both compute the same. Weights have
the names and shapes that the engine's loader expects.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from outrider.models.dflash.dflash_tensors import CONFIDENCE, MARKOV_FROM, MARKOV_TO, MASK_VECTOR
from outrider.models.eagle.head_config import HeadConfig
from outrider.models.eagle.head_tensors import expected_tensors, layer_prefix
from outrider.train.batches import Anchors
from outrider.train.block_attention import BlockAttention, BlockPlaces, make_block_attention
from outrider.train.decoder_layer import after_attention, layer_weights
from outrider.train.packed_attention import (
    CosSin,
    PackedRotary,
    rms,
    rotate,
    split_heads,
)
from outrider.train.packed_target import PackedTarget
from outrider.train.training_device import TrainingDevice
from outrider.train.training_head import DraftLogits, HeadInputs, Weights, random_weights

_NORM = "norm.weight"


def initial_block_weights(
    config: HeadConfig, target: PackedTarget, *, seed: int
) -> dict[str, nn.Parameter]:
    """Random weights, small where they write to the residual stream. The target's final norm; the
    token before says nothing at first.
    """
    shapes = expected_tensors(config, target_hidden=target.config.block.hidden).needed
    values = random_weights(shapes, seed=seed)
    values[_NORM] = target.final_norm.float().cpu()
    if MARKOV_TO in values:
        values[MARKOV_TO].zero_()
    device = target.embedding.device
    return {name: nn.Parameter(value.to(device).clone()) for name, value in values.items()}


class TrainingBlock:
    """The forward pass of a head. Weights are passed with every call, in the compute dtype."""

    def __init__(self, config: HeadConfig, target: PackedTarget, device: TrainingDevice) -> None:
        assert config.blocks is not None, "a head that drafts blocks"
        self._config, self._blocks, self._kind = config, config.blocks, device.attention
        self._output = device.fused(after_attention)
        self._target = target
        self._rotary = PackedRotary(
            config.layer.rope,
            head_dim=config.layer.plain_attention.head_dim,
            device=target.embedding.device,
        )

    def draft_logits(
        self, weights: Weights, inputs: HeadInputs, anchors: Anchors, *, depth: int
    ) -> Iterator[DraftLogits]:
        """Logits of the trained rows, one depth after the other."""
        states = self._run_blocks(weights, inputs, anchors.chosen).flatten(0, 1)
        tokens, first = inputs.tokens.flatten(), self._blocks.block.first
        for step in range(depth):
            own = states[:, first + step].index_select(0, anchors.places[step])
            logits, vectors = F.linear(own, self._target.head), own[:, :0]
            if self._blocks.markov is not None:
                before = tokens.index_select(0, anchors.rows[step] + 1 + step)
                vectors = F.embedding(before, weights[MARKOV_FROM])
                logits = logits + F.linear(vectors, weights[MARKOV_TO])
            yield DraftLogits(tokens=logits, confidence=self._confidence(weights, own, vectors))

    def _confidence(
        self,
        weights: Weights,
        states: torch.Tensor,  # [trained, width]
        vectors: torch.Tensor,  # [trained, rank] of the tokens before; rank 0 without a Markov head
    ) -> torch.Tensor:  # [trained, 1], or [trained, 0] without a confidence head
        """The logit of the chance of each draft. What it reads is not trained by it, so that it
        costs no acceptance.
        """
        config = self._blocks.confidence
        if config is None:
            return states[:, :0]
        read = torch.cat([states, vectors], -1) if config.reads_token else states
        weight, bias = weights[f"{CONFIDENCE}.weight"], weights[f"{CONFIDENCE}.bias"]
        return F.linear(read.detach().float(), weight.float(), bias.float())

    def _run_blocks(
        self, weights: Weights, inputs: HeadInputs, starts: torch.Tensor
    ) -> torch.Tensor:  # [batch, anchors, size, width]
        block, (batch, anchors) = self._blocks.block, starts.shape
        context = self._norm(
            F.linear(inputs.aux_hidden_states, weights["fc.weight"]), weights["hidden_norm.weight"]
        )
        stream = self._slots(weights, inputs.tokens, starts)
        attention = make_block_attention(
            self._kind,
            BlockPlaces(
                documents=inputs.documents,
                starts=starts,
                size=block.size,
                is_causal=block.is_causal,
            ),
        )
        slots = torch.arange(1, block.size + 1, device=starts.device)
        places = (inputs.positions.gather(1, starts)[:, :, None] + slots).flatten(1)
        own = self._rotary.at(places, stream.dtype)
        both = self._rotary.at(torch.cat([inputs.positions, places], 1), stream.dtype)
        for index in range(self._config.num_layers):
            prefix = layer_prefix(index)
            stream = self._layer(weights, prefix, stream, context, own, both, attention)
        return self._norm(stream, weights[_NORM]).view(batch, anchors, block.size, -1)

    def _slots(
        self, weights: Weights, tokens: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:  # [batch, anchors * size, width]
        """The token after the context of each block, then masks."""
        first = F.embedding(tokens.gather(1, starts + 1), self._target.embedding)
        (batch, anchors), num_masks = starts.shape, self._blocks.block.size - 1
        token_row = self._target.embedding[self._blocks.block.mask_token]
        mask = weights[MASK_VECTOR] if self._blocks.has_mask_vector else token_row
        masks = mask.expand(batch, anchors, num_masks, -1)
        return torch.cat([first[:, :, None], masks], 2).flatten(1, 2)

    def _layer(
        self,
        weights: Weights,
        prefix: str,
        stream: torch.Tensor,  # [batch, slots, width]
        context: torch.Tensor,  # [batch, length, width]
        own: CosSin,  # of slots
        both: CosSin,  # of the context, then slots
        attention: BlockAttention,
    ) -> torch.Tensor:  # [batch, slots, width]
        normed = self._norm(stream, weights[prefix + "input_layernorm.weight"])
        seen = torch.cat([context, normed], 1)
        query = rotate(self._heads(weights, prefix, "q", normed), own)
        key = rotate(self._heads(weights, prefix, "k", seen), both)
        value = self._heads(weights, prefix, "v", seen)
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        read = attention.attend(query, key, value)
        own_weights = layer_weights(weights, prefix)
        return self._output(own_weights, stream, read, eps=self._config.layer.block.norm_eps)

    def _heads(
        self, weights: Weights, prefix: str, name: str, x: torch.Tensor
    ) -> torch.Tensor:  # [batch, heads, length, head_dim]
        """Queries, keys or values; queries and keys are normalised per head."""
        prefix += "self_attn."
        head_dim = self._config.layer.plain_attention.head_dim
        heads = split_heads(F.linear(x, weights[f"{prefix}{name}_proj.weight"]), head_dim)
        return heads if name == "v" else self._norm(heads, weights[f"{prefix}{name}_norm.weight"])

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms(x, weight, self._config.layer.block.norm_eps)
