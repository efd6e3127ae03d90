"""How the rows of query, key and value projections are fused into one linear layer."""

from collections.abc import Callable

import torch

from outrider.models.decoder_tensors import FUSED_QKV, QKV
from outrider.models.family import Family
from outrider.models.model_config import AttentionConfig, ModelConfig
from outrider.models.partial_rope_tensors import split_rotary_pairs, spread_channels
from outrider.models.rope_config import RopeConfig
from outrider.models.tensor_cut import Cut


def stack_qkv(
    read: Callable[[str], torch.Tensor],  # weight, bias or adapter rows of q_proj, k_proj, v_proj
    config: ModelConfig,  # of this rank
    attention: AttentionConfig,
    rope: RopeConfig,  # of the layer
) -> torch.Tensor:  # [rows, ...]
    """Queries, keys, values, then the gates of attention's output where the model has them."""
    query, key, value = (read(name) for name in QKV)
    query, gate = _split_gate(query, config, attention)
    rotated = spread_heads(query, attention, rope), spread_heads(key, attention, rope)
    return torch.cat([*rotated, value, gate])


def spread_heads(heads: torch.Tensor, attention: AttentionConfig, rope: RopeConfig) -> torch.Tensor:
    """Queries or keys in the channel order that the layers rotate. See `spread_channels`."""
    rotated = rope.num_rotated(attention.head_dim)
    if rope.is_interleaved:
        heads = split_rotary_pairs(heads, dim=attention.head_dim, rope=rotated)
    return spread_channels(heads, head_dim=attention.head_dim, rotated=rotated)


def _split_gate(
    query: torch.Tensor, config: ModelConfig, attention: AttentionConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of queries and the rows of their gates; no gate rows without output gates."""
    if not config.family.has_output_gate:
        return query, query[:0]
    pairs = query.view(attention.heads, 2, attention.head_dim, *query.shape[1:])
    return pairs[:, 0].flatten(0, 1), pairs[:, 1].flatten(0, 1)


def key_tensor(family: Family) -> str:
    """The name of the weight that has the keys: k_proj, or the fused projection."""
    return f"{FUSED_QKV if family.style.has_fused_projections else QKV[1]}.weight"


def kv_heads_in(
    cut: Cut,  # of the tensor that `key_tensor` names
    whole: AttentionConfig,
    family: Family,
) -> torch.Tensor:  # [own kv_heads] int64
    """The key-value heads that a rank has."""
    dim, first = whole.head_dim, 0
    if family.style.has_fused_projections:  # queries, keys, values
        first = whole.heads * dim
    end = first + whole.kv_heads * dim
    rows = cut.of(torch.arange(end if not first else end + whole.kv_heads * dim))
    return (rows[(rows >= first) & (rows < end)][::dim] - first) // dim
