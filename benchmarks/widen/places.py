"""Where the weights of a small linear go in a wide one, and what surrounds them."""

import zlib
from dataclasses import dataclass

import torch

from outrider.models.model_config import AttentionConfig

_STD = 0.02  # of noise, as models are initialised: states stay finite through any layer

Shape = tuple[int, ...]


class Noise:
    """Draws weights that are multiplied by zeros; the name of a tensor is its seed."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device

    def linear(self, name: str, shape: Shape) -> torch.Tensor:
        """Numbers like those of an untrained linear."""
        return self.zeros(shape).normal_(0.0, _STD, generator=self._generator(name))

    def norm(self, name: str, size: int) -> torch.Tensor:  # [size]
        """Numbers like those of a norm."""
        return self.zeros((size,)).uniform_(0.5, 1.5, generator=self._generator(name))

    def zeros(self, shape: Shape) -> torch.Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def cast(self, tensor: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """A stored tensor times a number, rounded once."""
        return (tensor.to(self.device, torch.float32) * scale).to(self.dtype)

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenPlace:
    """Where a small linear goes. The silent rows and columns are zero, the rest is noise."""

    rows: torch.Tensor  # [small out]
    columns: torch.Tensor  # [small in]
    silent_rows: torch.Tensor  # [any]
    silent_columns: torch.Tensor  # [any]
    scale: float = 1.0


NOWHERE = torch.empty(0, dtype=torch.int64, device="cpu")


def widen_linear(
    name: str,
    block: torch.Tensor,  # [small out, small in]
    shape: Shape,  # (out, in)
    place: WidenPlace,
    noise: Noise,
) -> torch.Tensor:  # [out, in]
    """The linear at its place in a larger one."""
    is_silent = place.silent_rows.shape[0] == shape[0]
    wide = noise.zeros(shape) if is_silent else noise.linear(name, shape)
    wide[place.silent_rows.to(noise.device)] = 0.0
    wide[:, place.silent_columns.to(noise.device)] = 0.0
    rows, columns = place.rows.to(noise.device), place.columns.to(noise.device)
    wide[rows[:, None], columns] = noise.cast(block, place.scale)
    return wide


def widen_norm(
    name: str,
    block: torch.Tensor,  # [parts * small]
    *,
    parts: int,  # vectors side by side that are normalised together
    width: int,  # of each part
    noise: Noise,
) -> torch.Tensor:  # [parts * width]
    """The weights of a norm over more channels; the one after the used channels is zero."""
    channels = block.shape[0] // parts
    wide = noise.norm(name, parts * width).view(parts, width)
    wide[:, :channels] = noise.cast(block, (channels / width) ** 0.5).view(parts, channels)
    wide[:, channels : channels + 1] = 0.0
    return wide.flatten()


def side_by_side(channels: int, *, parts: int, width: int) -> torch.Tensor:  # [parts * channels]
    """Indices of the first channels of several vectors of the same width, side by side."""
    return (torch.arange(parts)[:, None] * width + torch.arange(channels)).flatten()


class HeadPlaces:
    """Which rows of the wide projections hold the small model's heads.

    Group j stays group j, with its queries first. Within a head, pair i of the rotation becomes
    pair i * D/d, whose angle is the same.
    """

    def __init__(self, small: AttentionConfig, wide: AttentionConfig) -> None:
        dims = _dims(small.head_dim, wide.head_dim)  # [d]
        groups = torch.arange(small.kv_heads)
        first = groups * (wide.heads // wide.kv_heads)
        queries = first[:, None] + torch.arange(small.heads // small.kv_heads)
        every = torch.arange(wide.head_dim)
        dead = every[~torch.isin(every, dims)]
        self.query = _rows(queries.flatten(), dims, wide.head_dim)  # [heads * d]
        self.key = _rows(groups, dims, wide.head_dim)  # [kv_heads * d]
        self.silent_query = _rows(queries.flatten(), dead, wide.head_dim)  # [heads * (D - d)]
        self.query_scale = (
            wide.head_dim / small.head_dim
        ) ** 0.5  # offsets the smaller scale of scores


def _dims(small: int, wide: int) -> torch.Tensor:  # [small] in a head of `wide`
    pairs = torch.arange(small // 2) * (wide // small)
    return torch.cat([pairs, pairs + wide // 2])


def _rows(heads: torch.Tensor, dims: torch.Tensor, head_dim: int) -> torch.Tensor:
    return (heads[:, None] * head_dim + dims).flatten()
