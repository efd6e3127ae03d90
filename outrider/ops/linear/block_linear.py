"""Linear layers over packed weight blocks for x86 CPUs: the bytes of a GGUF file, or 8 bits.

Each row of activations is quantised to 8 bits per 32 inputs, as llama.cpp does. On SmolLM2-135M
this adds 0.3% to the perplexity. Integer sums are exact, and blocks are added in a fixed order. So
the bits of a row do not depend on the other rows.
"""

import importlib.util

import torch

from outrider.ops.compiled.block_kind import BLOCK, KINDS, KindName
from outrider.ops.compiled.pack_blocks import pack_blocks, quantise_rows
from outrider.ops.graph_break import graph_break


def supports_blocks() -> bool:
    """Whether this machine has numba, the threads of GNU OpenMP, and an x86 CPU with AVX2."""
    if importlib.util.find_spec("numba") is None:
        return False
    from outrider.ops.compiled.thread_team import has_team

    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") and has_team()


class BlockLinear:
    """Owns a weight in the order of the compiled kernels. Inputs and outputs are float32."""

    min_rows = 1

    def __init__(
        self,
        rows: torch.Tensor,  # [out, row_bytes] uint8, as in a GGUF file
        name: KindName,
        inputs: int,
    ) -> None:
        from outrider.ops.compiled.block_product import block_product, scratch_bytes
        from outrider.ops.compiled.thread_team import run_team

        kind = KINDS[name]
        assert rows.shape[1] == -(-inputs // BLOCK) * kind.block_bytes, "whole blocks"
        self._blocks = pack_blocks(rows, kind)
        self._kind = kind.index
        self._inputs, self._outputs = inputs, rows.shape[0]
        self._tile_bytes = self._blocks.shape[1] * self._blocks.shape[2]
        self._function = int(block_product.address)
        self._scratch_bytes, self._run_team = scratch_bytes, run_team

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape[0], self._outputs)
        graph_break(self._multiply, x.contiguous(), out)
        return out

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        graph_break(self._multiply, x.contiguous(), residual, residual)
        return residual

    def _multiply(
        self, x: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None = None
    ) -> None:
        size = self._scratch_bytes(
            rows=x.shape[0], inputs=self._inputs, threads=torch.get_num_threads()
        )
        scratch = torch.empty(size, dtype=torch.uint8)
        self._run_team(
            self._function,
            (
                self._kind,
                self._blocks.data_ptr(),
                x.shape[0],
                self._inputs,
                self._outputs,
                x.data_ptr(),
                out.data_ptr(),
                0 if residual is None else residual.data_ptr(),
                scratch.data_ptr(),
                self._tile_bytes,
            ),
        )


def eight_bit_linear(weight: torch.Tensor) -> BlockLinear:  # [out, in]
    """A linear layer whose weight is rounded to 8 bits per 32 inputs."""
    return BlockLinear(quantise_rows(weight), "Q8_0", weight.shape[1])
