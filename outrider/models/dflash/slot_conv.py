"""DFlash2: convolutions along the slots of a block, around attention and the MLP of a layer."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from outrider.models.decoder import DecoderLayer
from outrider.models.eagle.eagle_layer import apply_padded
from outrider.models.layers.attention_layer import Attention, AttentionStep
from outrider.models.layers.mlp import FeedForward, FeedStep
from outrider.ops.linear.linear import Linear

_BEFORE, _AFTER = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotConv:
    """A depthwise convolution over a slot and those before it in its block.

    Its kernel is a stored one, plus one that depends on the slot and that groups of channels share.
    """

    base: torch.Tensor  # [2, taps, width] before and after the part; tap 0 is the slot itself
    project: Linear  # [width -> 2 * taps * groups]
    size: int  # slots of a block

    def kernels(self, x: torch.Tensor) -> torch.Tensor:  # [n, width] -> [2, n, taps, width]
        """The kernels before and after a part with this normalised input."""
        (_, taps, width), rows = self.base.shape, x.shape[0]
        own = apply_padded(self.project, x).view(rows, 2, taps, -1)
        own = own.repeat_interleave(width // own.shape[3], dim=3)
        return self.base[:, None] + own.transpose(0, 1)

    def convolve(
        self,
        x: torch.Tensor,  # [n, width] block after block
        kernel: torch.Tensor,  # [n, taps, width]
    ) -> torch.Tensor:  # [n, width]
        """Sum the slots of each tap. Before the first slot of a block there are zeros."""
        rows, taps = x.shape[0], kernel.shape[1]
        slot = torch.arange(rows, device=x.device)[:, None] % self.size
        out = kernel[:, 0] * x
        for tap in range(1, taps):
            moved = F.pad(x, (0, 0, tap, 0))[:rows]
            out = out + kernel[:, tap] * torch.where(slot >= tap, moved, 0.0)
        return out


class ConvolvedAttention:
    """Attention of the slots of a block. Keys and values of the context bypass it."""

    def __init__(self, attention: Attention, conv: SlotConv) -> None:
        self._attention = attention
        self._conv = conv

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, layer: Any, step: AttentionStep
    ) -> torch.Tensor:  # [n, width]
        kernels, convolve = self._conv.kernels(x), self._conv.convolve
        x = convolve(x, kernels[_BEFORE])
        out = self._attention(x, torch.zeros_like(residual), layer, step)
        return residual.add_(convolve(out, kernels[_AFTER]))

    def write_kv(self, x: torch.Tensor, layer: Any, step: AttentionStep) -> None:
        self._attention.write_kv(x, layer, step)


class ConvolvedFeed:
    """The same for the MLP."""

    def __init__(self, feed: FeedForward, conv: SlotConv) -> None:
        self._feed = feed
        self._conv = conv

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor, step: FeedStep
    ) -> torch.Tensor:  # [n, width]
        kernels, convolve = self._conv.kernels(x), self._conv.convolve
        out = self._feed(convolve(x, kernels[_BEFORE]), torch.zeros_like(residual), step)
        return residual.add_(convolve(out, kernels[_AFTER]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotConvs:
    """The convolutions of a layer."""

    attention: SlotConv
    mlp: SlotConv

    def around(self, layer: DecoderLayer) -> DecoderLayer:
        """The layer with its convolutions. The input of its MLP must be normalised before it."""
        return replace(
            layer,
            attention=ConvolvedAttention(layer.attention, self.attention),
            mlp=ConvolvedFeed(layer.mlp, self.mlp),
        )
