"""A decoder layer over packed sequences, as two functions: before and after its attention.

They take the weights of the layer by their names within it, so that one compiled form serves all
layers of a model.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from outrider.train.packed_attention import join_heads, rms, rotate_by, split_heads

LayerWeights = Mapping[str, torch.Tensor]


def layer_weights(weights: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The weights of one layer, by their names within it."""
    return {
        name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)
    }


def before_attention(
    weights: LayerWeights,
    stream: torch.Tensor,  # [batch, length, hidden]
    cos: torch.Tensor,  # [batch, 1, length, head_dim]
    sin: torch.Tensor,  # [batch, 1, length, head_dim]
    *,
    norm: str,  # name of the norm of the layer's input
    group: int,  # query heads of a key head
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # [batch, heads, length, head_dim] each
    """Queries, keys and values of a layer, as attention reads them."""
    x = rms(stream, weights[norm + ".weight"], eps)
    return project_heads(weights, x, cos, sin, group=group, eps=eps)


def project_heads(
    weights: LayerWeights,
    x: torch.Tensor,  # [batch, length, input] normalised
    cos: torch.Tensor,  # [batch, 1, length, head_dim]
    sin: torch.Tensor,  # [batch, 1, length, head_dim]
    *,
    group: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # [batch, heads, length, head_dim] each
    """The same, of an input that is normalised already."""
    query, key, value = (
        split_heads(
            F.linear(x, weights[f"self_attn.{name}.weight"], weights.get(f"self_attn.{name}.bias")),
            cos.shape[-1],
        )
        for name in ("q_proj", "k_proj", "v_proj")
    )
    if "self_attn.q_norm.weight" in weights:
        query = rms(query, weights["self_attn.q_norm.weight"], eps)
        key = rms(key, weights["self_attn.k_norm.weight"], eps)
    key = rotate_by(key, cos=cos, sin=sin).repeat_interleave(group, 1)
    return rotate_by(query, cos=cos, sin=sin), key, value.repeat_interleave(group, 1)


def after_attention(
    weights: LayerWeights,
    stream: torch.Tensor,  # [batch, length, hidden]
    read: torch.Tensor,  # [batch, heads, length, head_dim]
    *,
    eps: float,
) -> torch.Tensor:  # [batch, length, hidden]
    """The stream after a layer: what attention read, and the feed-forward part."""
    stream = stream + F.linear(join_heads(read), weights["self_attn.o_proj.weight"])
    x = rms(stream, weights["post_attention_layernorm.weight"], eps)
    gate = F.silu(F.linear(x, weights["mlp.gate_proj.weight"]))
    up = F.linear(x, weights["mlp.up_proj.weight"])
    return stream + F.linear(gate * up, weights["mlp.down_proj.weight"])
