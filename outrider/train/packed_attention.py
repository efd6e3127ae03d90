"""Attention over packed sequences, rotary embedding, and the merge with a row's own draft steps."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F

from outrider.models.layers.rotary_embedding import attention_factor, scaled_frequencies
from outrider.models.rope_config import RopeConfig

AttentionKind = Literal["dense", "flex"]


class PackedAttention(Protocol):
    """Attention of every row to the rows of its own document up to itself.

    Queries, keys, values and the result are [batch, heads, length, head_dim].
    """

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor: ...

    def attend_with_lse(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The result, and the log-sum-exp of each row's scores [batch, heads, length]."""
        ...


class DenseAttention:
    """Computes all scores at once: the reference, used on CPUs."""

    def __init__(self, documents: torch.Tensor) -> None:  # [batch, length]
        same = documents[:, :, None] == documents[:, None, :]
        self._mask = same.tril()[:, None]  # [batch, 1, length, length]

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self._mask)

    def attend_with_lse(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        scores = scores.masked_fill(~self._mask, float("-inf"))
        lse = scores.float().logsumexp(-1)  # [batch, heads, length]
        weights = (scores - lse[..., None]).exp().to(value.dtype)
        return weights @ value, lse


class FlexAttention:
    """Compiled flex attention, used on GPUs. Skips blocks of scores that are masked entirely."""

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

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = compiled_flex()(query, key, value, block_mask=self._mask)
        return result

    def attend_with_lse(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result: tuple[torch.Tensor, torch.Tensor] = compiled_flex()(
            query, key, value, block_mask=self._mask, return_lse=True
        )
        return result


@functools.cache
def compiled_flex() -> Callable[..., Any]:
    """Flex attention, compiled once per process when it is first used."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def make_attention(kind: AttentionKind, documents: torch.Tensor) -> PackedAttention:
    return FlexAttention(documents) if kind == "flex" else DenseAttention(documents)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """Keys and values of all rows at one draft step."""

    key: torch.Tensor  # [batch, heads, length, head_dim]
    value: torch.Tensor  # [batch, heads, length, head_dim]


def attend_packed(
    attention: PackedAttention,
    query: torch.Tensor,  # [batch, heads, length, head_dim]
    first: KeyValue,  # of depth 0, seen by the later rows of the document
    later: Sequence[KeyValue],  # of the depths after it, seen by the row itself only
) -> torch.Tensor:  # [batch, heads, length, head_dim]
    """One softmax over the rows of the document and the row's own later depths.

    The two parts are merged by their log-sum-exps, so no key is stored twice.
    """
    if not later:
        return attention.attend(query, first.key, first.value)
    read, lse = attention.attend_with_lse(query, first.key, first.value)
    scale = query.shape[-1] ** -0.5
    own = [(query * each.key).sum(-1, dtype=torch.float32) * scale for each in later]
    shares = torch.stack([lse, *own], -1).softmax(-1).to(query.dtype)  # [.., 1 + later]
    parts = [read, *(each.value for each in later)]
    return sum(
        (shares[..., place, None] * part for place, part in enumerate(parts[1:], start=1)),
        start=shares[..., 0, None] * parts[0],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CosSin:
    """Rotary factors of every row, the same for all heads."""

    cos: torch.Tensor  # [batch, 1, length, head_dim]
    sin: torch.Tensor  # [batch, 1, length, head_dim] negative in the first half


class PackedRotary:
    """Rotary embedding by position, out of place, so that gradients pass."""

    def __init__(self, config: RopeConfig, *, head_dim: int, device: torch.device) -> None:
        self._frequencies = scaled_frequencies(config, head_dim).repeat(2).to(device)  # [head_dim]
        self._scale = attention_factor(config.scaling)
        half = torch.ones(head_dim // 2, device=device)
        self._signs = torch.cat([-half, half])

    def at(
        self,
        positions: torch.Tensor,  # [batch, length]
        dtype: torch.dtype,
    ) -> CosSin:
        angles = positions[:, None, :, None] * self._frequencies
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale * self._signs
        return CosSin(cos=cos.to(dtype), sin=sin.to(dtype))


def rotate(
    heads: torch.Tensor,  # [batch, heads, length, head_dim]
    rotary: CosSin,
) -> torch.Tensor:  # [batch, heads, length, head_dim]
    return rotate_by(heads, cos=rotary.cos, sin=rotary.sin)


def rotate_by(
    heads: torch.Tensor,  # [batch, heads, length, head_dim]
    *,
    cos: torch.Tensor,  # as in `CosSin`
    sin: torch.Tensor,
) -> torch.Tensor:  # [batch, heads, length, head_dim]
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
