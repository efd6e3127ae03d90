"""Linear layers over weight blocks, fused with the norm before them and with what follows."""

import torch

from outrider.ops.compiled.block_kind import TILE
from outrider.ops.graph_break import graph_break
from outrider.ops.linear.block_linear import BlockLinear
from outrider.ops.norm_rope.rms_norm import Norm, with_eps
from outrider.ops.norm_rope.rotary import Rotation


class BlockGate:
    """silu(gate) * up of the two halves of norm(x) W^T, in one compiled function."""

    def __init__(self, norm: Norm, gate_up: BlockLinear) -> None:
        from outrider.ops.compiled.block_product import gated_product

        self.norm = with_eps(norm.weight, norm.eps)
        self.gate_up = gate_up
        self._function = int(gated_product.address)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, intermediate]
        out = x.new_empty(x.shape[0], self.gate_up.outputs // 2)
        graph_break(self._run, x.contiguous(), out)
        return out

    def _run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self.gate_up.run(self._function, x, out, self.norm)


class BlockHeads:
    """Norm, projection, rotation and the KV write, in one compiled function."""

    def __init__(self, norm: Norm, qkv: BlockLinear) -> None:
        from outrider.ops.compiled.block_product import projected_heads

        self.norm = with_eps(norm.weight, norm.eps)
        self.qkv = qkv
        self._function = int(projected_heads.address)

    def __call__(
        self,
        x: torch.Tensor,  # [num_query, in]
        rotation: Rotation,
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        slots: torch.Tensor,  # [num_query]
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        """The rotated queries; keys and values are written to their slots."""
        channels = x.new_empty(x.shape[0], self.qkv.outputs)
        graph_break(self._run, x.contiguous(), rotation.cos, rotation.sin, layer, slots, channels)
        vectors, head_dim = layer.shape[2:]
        return channels.view(x.shape[0], -1, head_dim)[:, :-vectors]

    def _run(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        layer: torch.Tensor,
        slots: torch.Tensor,
        channels: torch.Tensor,
    ) -> None:
        vectors, head_dim = layer.shape[2:]
        self.qkv.run(
            self._function,
            x,
            channels,
            self.norm,
            self.qkv.outputs // head_dim - vectors,
            vectors,
            head_dim,
            cos.data_ptr(),
            sin.data_ptr(),
            layer.data_ptr(),
            slots.data_ptr(),
        )


def can_gate(gate_up: BlockLinear) -> bool:
    """Whether the halves are whole tiles."""
    return gate_up.outputs % (2 * TILE) == 0
