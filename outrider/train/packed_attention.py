"""Attention of packed sequences, and the merge that lets a row see its own later steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F

from outrider.models.layers.rotary_embedding import attention_factor, scaled_frequencies
from outrider.models.model_config import RopeConfig

AttentionKind = Literal["dense", "flex"]


class PackedAttention(Protocol):
    """Attention of every row to the rows of its own document up to itself.

    Queries, keys, values and what is read are [batch, heads, length, head_dim].
    """

    def read(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor: ...

    def read_with_sum(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and the log of the sum of each row's exponents [batch, heads, length]."""
        ...


class DenseAttention:
    """Every score written down: the reference, and right for a CPU."""

    def __init__(self, documents: torch.Tensor) -> None:  # [batch, length]
        same = documents[:, :, None] == documents[:, None, :]
        self._seen = same.tril()[:, None]  # [batch, 1, length, length]

    def read(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self._seen)

    def read_with_sum(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = scores.masked_fill(~self._seen, float("-inf"))
        log_sum = scores.float().logsumexp(-1)  # [batch, heads, length]
        weights = (scores - log_sum[..., None]).exp().to(value.dtype)
        return weights @ value, log_sum


class FlexAttention:
    """Compiled, and skips blocks that no document reaches into: right for a GPU."""

    def __init__(self, documents: torch.Tensor) -> None:  # [batch, length]
        from torch.nn.attention.flex_attention import create_block_mask

        def is_seen(
            row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
        ) -> torch.Tensor:
            return (query >= key) & (documents[row, query] == documents[row, key])

        batch, length = documents.shape
        self._mask = create_block_mask(
            is_seen, batch, None, length, length, device=documents.device
        )

    def read(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _compiled_flex()(query, key, value, block_mask=self._mask)
        return found

    def read_with_sum(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = _compiled_flex()(
            query, key, value, block_mask=self._mask, return_lse=True
        )
        return found


_FLEX: list[Callable[..., Any]] = []  # compiled once per process, when first needed


def _compiled_flex() -> Callable[..., Any]:
    if not _FLEX:
        from torch.nn.attention.flex_attention import flex_attention

        _FLEX.append(torch.compile(flex_attention, dynamic=False))
    return _FLEX[0]


def make_attention(kind: AttentionKind, documents: torch.Tensor) -> PackedAttention:
    return FlexAttention(documents) if kind == "flex" else DenseAttention(documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """Key and value of a row at one of its later steps; only the row itself sees them."""

    key: torch.Tensor  # [batch, heads, length, head_dim]
    value: torch.Tensor  # [batch, heads, length, head_dim]


def attend_packed(
    block: PackedAttention,
    query: torch.Tensor,  # [batch, heads, length, head_dim], as are key and value
    key: torch.Tensor,
    value: torch.Tensor,
    later: Sequence[KeyValue],
) -> torch.Tensor:  # [batch, heads, length, head_dim]
    """One softmax over the rows of the document and the row's own later steps.

    The two parts are merged by the logs of their sums, so no key is stored twice.
    """
    if not later:
        return block.read(query, key, value)
    read, log_sum = block.read_with_sum(query, key, value)
    scale = query.shape[-1] ** -0.5
    own = [(query * each.key).sum(-1, dtype=torch.float32) * scale for each in later]
    shares = torch.stack([log_sum, *own], -1).softmax(-1).to(query.dtype)  # [.., 1 + later]
    parts = [read, *(each.value for each in later)]
    return sum(
        (shares[..., place, None] * part for place, part in enumerate(parts[1:], start=1)),
        start=shares[..., 0, None] * parts[0],
    )


class PackedRotary:
    """Turns heads by their positions, out of place, so that gradients pass."""

    def __init__(self, config: RopeConfig, *, head_dim: int, device: torch.device) -> None:
        self._frequencies = scaled_frequencies(config, head_dim).repeat(2).to(device)  # [head_dim]
        self._scale = attention_factor(config.scaling)
        half = torch.ones(head_dim // 2, device=device)
        self._signs = torch.cat([-half, half])

    def at(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:  # positions [batch, length]; [batch, 1, length, dim]
        angles = positions[:, None, :, None] * self._frequencies
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale * self._signs
        return cos.to(dtype), sin.to(dtype)


def rotate(
    heads: torch.Tensor,  # [batch, heads, length, head_dim]
    turn: tuple[torch.Tensor, torch.Tensor],  # [batch, 1, length, head_dim] each
) -> torch.Tensor:
    cos, sin = turn
    return heads * cos + heads.roll(heads.shape[-1] // 2, dims=-1) * sin


def split_heads(
    x: torch.Tensor,  # [batch, length, heads * head_dim]
    head_dim: int,
) -> torch.Tensor:  # [batch, heads, length, head_dim]
    batch, length, width = x.shape
    return x.view(batch, length, width // head_dim, head_dim).transpose(1, 2)


def join_heads(
    heads: torch.Tensor,  # [batch, heads, length, head_dim]
) -> torch.Tensor:  # [batch, length, heads * head_dim]
    return heads.transpose(1, 2).flatten(2)


def rms(
    x: torch.Tensor,  # [..., dim]
    weight: torch.Tensor,  # [dim]
    eps: float,
) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)
