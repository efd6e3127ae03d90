"""A weight of blocks, taken apart: what kernels pack, and what it widens to."""

from dataclasses import dataclass

import torch

from outrider.ops.compiled.block_kind import BLOCK, BlockKind


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParts:
    """The numbers of a weight, by what they are (`BlockKind` has the formula)."""

    kind: BlockKind
    codes: torch.Tensor  # [out, blocks * 32] uint8, none is negative
    heads: tuple[torch.Tensor, ...]  # [out, spans] each: scales, then minima or int16 zero points
    steps: tuple[torch.Tensor, ...]  # [out, blocks] int8 each; those of minima are the last

    @property
    def outputs(self) -> int:
        return self.codes.shape[0]

    @property
    def num_blocks(self) -> int:
        return self.codes.shape[1] // BLOCK

    @property
    def span(self) -> int:
        """Blocks that share a scale."""
        return self.num_blocks // self.heads[0].shape[1]

    def widen(self) -> torch.Tensor:  # [out, blocks * 32] float32
        """The numbers that the codes stand for."""
        kind, blocks = self.kind, (self.outputs, self.num_blocks)
        factors = self._spread(0)[..., None]  # [out, blocks, 1 or 2]
        if kind.num_steps:
            factors = factors * torch.stack(self.steps[: kind.num_steps], 2).float()
        codes = self.codes.view(*blocks, factors.shape[2], -1).float() - kind.offset
        if kind.has_zeros:
            codes = codes - self._spread(1)[..., None, None]
        wide = (codes * factors[..., None]).view(*blocks, BLOCK)
        if kind.has_minimum:
            minima = self._spread(1)
            if self.steps:
                minima = minima * self.steps[-1].float()
            wide = wide + minima[..., None]
        return wide.flatten(1)

    def _spread(self, head: int) -> torch.Tensor:  # [out, blocks]
        """What the blocks of a span share, for each of them."""
        return self.heads[head].float().repeat_interleave(self.span, 1)
