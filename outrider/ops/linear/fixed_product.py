"""A product of two tensors: the bits of an output depend on its row and its column alone."""

import torch

from outrider.ops.linear.product_rows import pad_product
from outrider.ops.linear.tiled_weight import tile_columns, why_no_tiles


def multiply_fixed(
    x: torch.Tensor,  # [parts, n, in] any type, unit stride along in
    weight: torch.Tensor,  # [parts, in, out] any strides
    out: torch.Tensor,  # [parts, n, out] written; unit stride along out
) -> None:
    """The product of every part.

    On a CPU in float32 compiled loops sum in the order of inputs. A library does so too where it
    gets whole groups of rows (`product_rows`): that was measured, the library does not promise it.
    """
    if x.device.type != "cpu":
        torch.matmul(x, weight, out=out)
    elif x.dtype == torch.float32 and not why_no_tiles():
        tile_columns(weight).multiply_parts(x, out)
    else:
        out.copy_((pad_product(x) @ weight)[:, : x.shape[1]])


def fixed_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same as a new tensor, [parts, n, out]."""
    out = x.new_empty(*x.shape[:2], weight.shape[2])
    multiply_fixed(x, weight, out)
    return out


def match_product(
    x: torch.Tensor,  # [parts, n, in]
    keys: torch.Tensor,  # [parts, m, in]
) -> torch.Tensor:  # [parts, n, m] contiguous
    """The product of every row of x with every key, by the same loops.

    Those read keys as they lie, so keys are the rows and x is turned. A library sums products of
    few columns in another order, so there rows are rows.
    """
    if x.device.type == "cpu" and not why_no_tiles():
        return fixed_product(keys, x.transpose(1, 2)).transpose(1, 2).contiguous()
    return fixed_product(x, keys.transpose(1, 2))
