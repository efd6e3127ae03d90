"""Linear layers with dense weights for x86 CPUs: float32, or 2 bytes per number.

Inputs and outputs are float32, and so are sums, which have one order. So the bits of a row do not
depend on the other rows, on the number of threads, or on a library.
"""

import torch

from outrider.ops.linear.tiled_product import TiledProduct
from outrider.ops.linear.tiled_weight import tile_weight


class DenseLinear:
    """Owns a weight in tiles of 16 outputs."""

    min_rows = 1

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype) -> None:  # [out, in]
        self.dtype = dtype  # in which the numbers are stored
        self._outputs = weight.shape[0]
        self._weight = tile_weight(weight[None], dtype)
        self.product = TiledProduct(
            self._weight.tile_table(),
            [self._weight.numbers],
            num_blocks=0,
            inputs=weight.shape[1],
            outputs=weight.shape[0],
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape[0], self._outputs)
        self._weight.multiply(_whole_rows(x), out)
        return out

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        self._weight.multiply(_whole_rows(x), residual, is_added=True)
        return residual


def _whole_rows(x: torch.Tensor) -> torch.Tensor:  # [n, in]
    return x if x.stride(1) == 1 else x.contiguous()
