"""Linear layers over packed weight blocks for x86 CPUs: the bytes of a GGUF file, or 8 bits.

Each row of activations is rounded to 8 bits per 32 inputs, as llama.cpp does. Integer sums are
exact, and blocks are added in a fixed order. So the bits of a row do not depend on the other rows.
"""

import torch

from outrider.ops.compiled.block_kind import BLOCK, KINDS, KindName
from outrider.ops.compiled.pack_blocks import pack_blocks, quantise_rows
from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.ops.graph_break import graph_break

NO_NORM = torch.zeros(1)


def why_no_blocks() -> str:
    """Why weights cannot be packed on this machine; empty if they can."""
    return why_not_compiled("outrider.ops.compiled.block_product")


def supports_blocks() -> bool:
    """Whether this machine has numba, the threads of GNU OpenMP, and an x86 CPU with AVX2."""
    return not why_no_blocks()


class BlockLinear:
    """Owns a weight in the order of the compiled kernels. Inputs and outputs are float32."""

    min_rows = 1

    def __init__(
        self,
        rows: torch.Tensor,  # [out, row_bytes] uint8, as in a GGUF file
        name: KindName,
        inputs: int,
    ) -> None:
        from outrider.ops.compiled.block_product import ADDED, block_product
        from outrider.ops.compiled.coded_rows import scratch_bytes
        from outrider.ops.compiled.thread_team import run_team

        kind = KINDS[name]
        assert rows.shape[1] == -(-inputs // BLOCK) * kind.block_bytes, "whole blocks"
        self.inputs, self.outputs = inputs, rows.shape[0]
        self._blocks = pack_blocks(rows, kind)
        _, num_blocks, block_bytes = self._blocks.shape
        self._weight = (
            kind.index,
            self._blocks.data_ptr(),
            num_blocks * block_bytes,
            num_blocks,
            inputs,
            self.outputs,
        )
        self._product, self._added = int(block_product.address), ADDED
        self._scratch_bytes, self._run_team = scratch_bytes, run_team

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape[0], self.outputs)
        graph_break(self._multiply, x.contiguous(), out, 0)
        return out

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        graph_break(self._multiply, x.contiguous(), residual, self._added)
        return residual

    def _multiply(self, x: torch.Tensor, out: torch.Tensor, is_added: int) -> None:
        self.run(self._product, x, out, NO_NORM, is_added)

    def fields(self, norm: torch.Tensor) -> tuple[int, ...]:
        """What compiled functions read of the weight, and of the norm before it (`run`)."""
        return (*self._weight, norm.data_ptr(), norm.shape[0] - 1)

    def run(
        self,
        function: int,  # address of one in `block_product`
        x: torch.Tensor,  # [rows, inputs] contiguous
        out: torch.Tensor,  # [rows, columns] contiguous
        norm: torch.Tensor,  # [inputs + 1] weight of a norm and its eps; [1] for none
        *own: int,  # the function's own fields
    ) -> None:
        """Run a compiled function over the weight, on all threads."""
        rows = x.shape[0]
        if not rows:
            return
        size = self._scratch_bytes(rows=rows, inputs=self.inputs, threads=torch.get_num_threads())
        scratch = torch.empty(size, dtype=torch.uint8)
        operands = rows, x.data_ptr(), scratch.data_ptr(), out.data_ptr()
        self._run_team(function, (*self.fields(norm), *operands, *own))


def eight_bit_linear(weight: torch.Tensor) -> BlockLinear:  # [out, in]
    """A linear layer whose weight is rounded to 8 bits per 32 inputs."""
    return BlockLinear(quantise_rows(weight), "Q8_0", weight.shape[1])
