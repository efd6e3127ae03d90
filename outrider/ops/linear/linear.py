"""Linear layers: one class per layout of the weight. `choose_linear` picks the class at load."""

from typing import Protocol

import torch
import torch.nn.functional as F

from outrider.ops.linear.library_linear import LibraryLinear
from outrider.ops.linear.linear_limits import (
    MOST_GATED_ROWS,
    MOST_SKINNY_ROWS,
    MOST_SMALL_ROWS,
    fits_small,
)
from outrider.ops.linear.swiglu import swiglu


class Linear(Protocol):
    """x W^T for every row of x."""

    min_rows: int  # fewer rows take more time than this many

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...  # [n, in] -> [n, out]

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x W^T; a GPU kernel adds the residual in its epilogue.

        The residual may be overwritten: a caller that reads it afterwards makes a copy first.
        """
        ...  # [n, in], [n, out] -> [n, out]


class PlainLinear:
    """A dense weight, computed by torch: portable, and fast for many rows on a GPU."""

    min_rows = 1

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in]
        self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual.addmm_(x, self._weight.t())


class FixedLinear:
    """The bits of a row depend on that row only.

    Our own kernels for few rows. For many, a library where it has the same bits.
    """

    min_rows = 1

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in] on CUDA
        # A CPU installation has no Triton.
        from outrider.ops.linear.linear_triton import linear, linear_plus, linear_swiglu
        from outrider.ops.linear.small_linear_triton import small_plus

        self.weight = weight
        self._linear = linear
        self._linear_plus = linear_plus
        self._linear_swiglu = linear_swiglu
        self._small_plus = small_plus
        self._most_small_rows = MOST_SMALL_ROWS if fits_small(weight) else 0
        self._library = LibraryLinear(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._library.takes(x):
            return self._library(x)
        return self._linear(x, self.weight)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= self._most_small_rows:
            return self._small_plus(x, self.weight, residual)
        if self._library.takes(x, has_residual=True):
            return self._library.plus(x, residual)
        return self._linear_plus(x, self.weight, residual)

    def swiglu(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out / 2]
        """SwiGLU of the two halves of x W^T, in the epilogue of our own kernels."""
        if x.shape[0] > MOST_GATED_ROWS and self._library.takes(x):
            return swiglu(self._library(x))
        return self._linear_swiglu(x, self.weight)


class StreamedLinear:
    """Our own kernels for few rows, which read weights faster; torch's library for many rows."""

    min_rows = 1

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in] in half precision on CUDA
        self.weight = weight
        self._few = FixedLinear(weight)
        self._many = PlainLinear(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._few(x) if x.shape[0] <= MOST_SKINNY_ROWS else self._many(x)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        linear = self._few if x.shape[0] <= MOST_SKINNY_ROWS else self._many
        return linear.plus(x, residual)

    def swiglu(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out / 2]
        """SwiGLU of the two halves of x W^T, in the epilogue for few rows."""
        if x.shape[0] <= MOST_GATED_ROWS:
            return self._few.swiglu(x)
        return swiglu(self._many(x))


class PackedLinear:
    """A weight in oneDNN's blocked layout, where `DenseLinear` cannot be compiled.

    oneDNN computes one row by another formula, and below 3 rows more slowly: 4 rows cost less time
    than 1 (SmolLM2-135M, all its linear layers, 2 cores of Zen 4: 1, 2, 4, 8 rows take 20, 24, 16,
    21 ms). So fewer rows are padded.
    """

    min_rows = 4

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in]
        # The batch size hint only picks the layout; one picked for 16 rows or more serves all.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, 32)
        self._apply = torch.ops.mkldnn._linear_pointwise.default
        self._apply_plus = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._apply(_padded(x, self.min_rows), self._weight, None, "none", [], "")
        return y[: len(x)]

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        rows, wide = _padded(x, self.min_rows), _padded(residual, self.min_rows)
        y: torch.Tensor = self._apply_plus(rows, wide, self._weight, None, "add")
        return y[: len(x)]


class BiasedLinear:
    """Another linear layer, with a bias added."""

    def __init__(self, linear: Linear, bias: torch.Tensor) -> None:  # bias [out]
        self.linear = linear
        self.bias = bias
        self.min_rows = linear.min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).add_(self.bias)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.linear.plus(x, residual).add_(self.bias)


class WideLinear:
    """Another linear layer, computed in float32 for activations of any type."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear
        self.min_rows = linear.min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x.float())

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._linear.plus(x.float(), residual)


def _padded(x: torch.Tensor, rows: int) -> torch.Tensor:  # [n, in] -> [n or rows, in]
    return x if len(x) >= rows else F.pad(x, (0, 0, 0, rows - len(x)))
