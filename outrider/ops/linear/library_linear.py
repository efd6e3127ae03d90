"""The library's product for many rows, where it has the bits of our kernels.

The library chooses its kernel by the sizes, and some of its kernels sum in another order. So its
result is compared with ours once for each size, on noise, before it is used. Another order changes
about one of 10,000 outputs, so with LEAST_OUTPUTS of them a wrong kernel does not pass.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.ops.linear.linear_limits import MOST_SKINNY_ROWS, MOST_SUMMED_ROWS

LEAST_OUTPUTS = 1 << 18  # of a product that is compared
_LINE = 16  # bytes: the alignment for which the library's usual kernels are chosen


@dataclass(frozen=True, slots=True)
class LibraryCase:
    """What the library chooses its kernel by."""

    device: torch.device
    dtype: torch.dtype
    rows: int
    size: int
    depth: int
    has_residual: bool  # which is added afterwards, to a product in float32


_HAS_OUR_BITS: dict[LibraryCase, bool] = {}  # of this process: layers of one size share it


class LibraryLinear:
    """A weight that the library multiplies by; `takes` says for which rows."""

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in] on CUDA
        from outrider.ops.linear.add_residual_triton import add_residual  # a CPU has no Triton

        self._weight = weight
        self._add = add_residual

    def takes(self, x: torch.Tensor, *, has_residual: bool = False) -> bool:
        """Whether these rows are multiplied by the library."""
        (rows, depth), size = x.shape, self._weight.shape[0]
        if rows <= (MOST_SUMMED_ROWS if has_residual else MOST_SKINNY_ROWS):
            return False
        if rows * size < LEAST_OUTPUTS or not _is_usual(x) or not _is_usual(self._weight):
            return False
        case = LibraryCase(x.device, x.dtype, rows, size, depth, has_residual)
        if case not in _HAS_OUR_BITS:
            if torch.cuda.is_current_stream_capturing():  # a comparison waits for the device
                return False
            _HAS_OUR_BITS[case] = self._compare(x, has_residual=has_residual)
        return _HAS_OUR_BITS[case]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out]
        return F.linear(x, self._weight)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x W^T, rounded once; overwrites the residual."""
        return self._add(torch.mm(x, self._weight.t(), out_dtype=torch.float32), residual)

    def _compare(self, x: torch.Tensor, *, has_residual: bool) -> bool:
        """Whether noise of this size has the bits of our kernel."""
        from outrider.ops.linear.linear_triton import LinearTile, launch_linear

        generator = torch.Generator(x.device).manual_seed(1)
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        zeros = x.new_zeros(x.shape[0], self._weight.shape[0])
        ours = launch_linear(
            noise,
            self._weight,
            zeros,
            tile=LinearTile(rows=128, columns=128, depth=64, stages=4, num_warps=8),
            has_residual=has_residual,
            is_gated=False,
        )
        theirs = self.plus(noise, zeros) if has_residual else self(noise)
        return torch.equal(ours, theirs)


def _is_usual(matrix: torch.Tensor) -> bool:
    return (
        matrix.is_cuda
        and matrix.element_size() == 2
        and matrix.is_contiguous()
        and matrix.data_ptr() % _LINE == 0 == matrix.shape[1] * matrix.element_size() % _LINE
    )
