"""Products of Triton's interpreter, summed in one order on every machine.

The interpreter multiplies by numpy, whose BLAS chooses the order of its sums by the processor and
by the size of the product. Tests that compare bits of two tilings would then fail on some machines:
a row of a small tile and the same row of a large one differ there, while a GPU sums both alike.
"""

import numba
import numpy as np
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_dot_of_numpy = InterpreterBuilder.create_dot


@numba.njit(cache=True)
def _multiply(
    a: np.ndarray,  # [batch, m, k]
    b: np.ndarray,  # [batch, k, n]
    out: np.ndarray,  # [batch, m, n] zeros
) -> None:
    """Every element is the sum over k, from the first to the last: no reordering, no fused add."""
    for batch in range(a.shape[0]):
        for i in range(a.shape[1]):
            for k in range(a.shape[2]):
                for j in range(b.shape[2]):
                    out[batch, i, j] += a[batch, i, k] * b[batch, k, j]


def _create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    if (
        a.dtype.primitive_bitwidth == 8 or b.dtype.primitive_bitwidth == 8
    ):  # sums of integers are exact
        return _dot_of_numpy(self, a, b, d, input_precision, max_num_imprecise_acc)
    out = np.zeros((int(np.prod(d.data.shape[:-2])), *d.data.shape[-2:]), d.data.dtype)
    _multiply(
        *(each.data.astype(out.dtype).reshape(-1, *each.data.shape[-2:]) for each in (a, b)), out
    )
    return TensorHandle(out.reshape(d.data.shape) + d.data, d.dtype.scalar)


def install_ordered_dot() -> None:
    InterpreterBuilder.create_dot = _create_dot
