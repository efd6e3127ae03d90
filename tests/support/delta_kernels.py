"""What the kernels of recurrent layers must do on any device: interpreted on a CPU, compiled on a
GPU. The references on a CPU say what is right.
"""

from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F

from outrider.ops.norm_rope.rms_norm import RmsNorm
from outrider.ops.recurrent.causal_conv import causal_conv_reference
from outrider.ops.recurrent.causal_conv_triton import causal_conv_triton
from outrider.ops.recurrent.delta_chunk_triton import MIN_CHUNK
from outrider.ops.recurrent.delta_rule import DeltaRule, gated_delta_rule_reference
from outrider.ops.recurrent.delta_rule_triton import gated_delta_rule_triton
from outrider.ops.recurrent.delta_sizes import DeltaSizes
from outrider.ops.recurrent.gated_norm_triton import gated_norm_triton
from outrider.ops.recurrent.recurrent_rows import NEW_TEXT, RecurrentRows, RecurrentState, StateRows
from outrider.ops.sparse.ring_plan import QueryWindows
from outrider.ops.sparse.ring_tokens import RingPlan, RingTokens

STATE_BY_BLOCKS = {torch.float32: 1e-4}  # products of half precision keep ten bits
STATE_BY_BLOCKS |= dict.fromkeys([torch.float16, torch.bfloat16], 1e-2)
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class DeltaCase:
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    accepted_counts: tuple[int, ...] = (0, 2, NEW_TEXT)  # of decode rows, then of chunks
    nodes: int = 3
    chunks: tuple[int, ...] = (5,)  # tokens of each
    most: int = 4  # nodes of the longest chain
    is_fixed: bool = False
    repeats: bool = False  # all tokens are alike, and decays are near one

    @property
    def sizes(self) -> DeltaSizes:
        return DeltaSizes(
            key_heads=self.key_heads,
            value_heads=self.value_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
        )

    @property
    def is_one_by_one(self) -> bool:
        """Whether chunks take the same sums as the reference, rather than those of blocks."""
        return self.is_fixed or max(self.chunks, default=0) < MIN_CHUNK

    @property
    def rows(self) -> int:
        return len(self.accepted_counts) - len(self.chunks)


def moved(record, device):
    """The record with copies of all its tensors elsewhere."""
    return replace(
        record,
        **{
            field.name: value.to(device, copy=True)
            for field in fields(record)
            if isinstance(value := getattr(record, field.name), torch.Tensor)
        },
    )


def make_rows(case: DeltaCase) -> RecurrentRows:
    count = torch.tensor([case.nodes] * case.rows + list(case.chunks))
    num_rows = count.shape[0]
    nothing = torch.zeros(0, dtype=torch.int64)
    return RecurrentRows(
        states=StateRows(
            rows=torch.randperm(num_rows) + 1,
            accepted_counts=torch.tensor(case.accepted_counts),
            firsts=count.cumsum(0) - count,
            counts=count,
        ),
        window=QueryWindows(
            query_index=torch.arange(int(count.sum())),
            owners=torch.arange(num_rows).repeat_interleave(count),
            ring=RingPlan(sources=nothing, writes=nothing),
        ),
        num_rows=case.rows,
        nodes=case.nodes,
        chunk_width=max(case.chunks, default=0),
    )


def check_recurrence(case: DeltaCase, where, seed: int = 0) -> None:
    """What is read, what the states become, and which node inputs are saved."""
    torch.manual_seed(seed)
    device, dtype = where
    sizes, rows = case.sizes, make_rows(case)
    num_query, table_rows = rows.window.owners.shape[0], len(case.accepted_counts) + 2
    rule = DeltaRule(
        sizes=sizes,
        conv_weight=torch.zeros(0),
        decay_scale=-torch.rand(sizes.value_heads) * (1e-3 if case.repeats else 1.0),
        dt_bias=torch.randn(sizes.value_heads),
        is_fixed=case.is_fixed,
    )
    heads = (table_rows, sizes.value_heads, sizes.key_dim, sizes.value_dim)
    layer = RecurrentState(
        window=torch.zeros(0),
        node_inputs=torch.randn(table_rows, case.most, sizes.node_inputs).to(dtype),
        state=torch.randn(heads),
    )
    # Channels are slices of a wider projection.
    channels = torch.randn(num_query, sizes.qkv + 2 * sizes.value_heads + 3).to(dtype)
    if case.repeats:
        channels = channels[:1].repeat(num_query, 1)
        channels[:, sizes.qkv : sizes.qkv + sizes.value_heads] = 6.0  # betas near one
    there = moved(layer, device)
    qkv, gates = channels[:, : sizes.qkv], channels[:, sizes.qkv : -3]
    right = gated_delta_rule_reference(qkv, gates, layer, rows, rule)
    far = channels.to(device)
    far_rows = replace(rows, states=moved(rows.states, device))
    found = gated_delta_rule_triton(
        far[:, : sizes.qkv], far[:, sizes.qkv : -3], there, far_rows, moved(rule, device)
    )
    close = {"rtol": 0, "atol": TOLERANCES[dtype]}
    torch.testing.assert_close(found.cpu(), right, **close)
    atol = 2e-5 if case.is_one_by_one else STATE_BY_BLOCKS[dtype]
    torch.testing.assert_close(there.state.cpu(), layer.state, rtol=0, atol=atol)
    assert torch.equal(there.node_inputs.cpu(), layer.node_inputs)


def check_causal_conv(num_query: int, width: int, window: int, where, seed: int = 0) -> None:
    torch.manual_seed(seed)
    device, dtype = where
    slots = 11
    ring, channels = (
        torch.randn(slots, width).to(dtype),
        torch.randn(num_query, width + 5).to(dtype),
    )
    sources = torch.randint(-1, slots + num_query, (num_query, window))
    conv_weight = torch.randn(width, window)
    right = causal_conv_reference(RingTokens(ring, channels[:, :width]), sources, conv_weight)
    far = [each.to(device) for each in (ring, channels, sources, conv_weight)]
    found = causal_conv_triton(RingTokens(far[0], far[1][:, :width]), far[2], far[3])
    torch.testing.assert_close(found.cpu(), right, rtol=0, atol=4 * TOLERANCES[dtype])


def check_gated_norm(num_query: int, heads: int, dim: int, where, seed: int = 0) -> None:
    torch.manual_seed(seed)
    device, dtype = where
    read = torch.randn(num_query, heads, dim).to(dtype)
    channels, weight = torch.randn(num_query, heads * dim + 3).to(dtype), torch.rand(dim).to(dtype)
    gate = channels[:, : heads * dim]
    normed = F.rms_norm(read.float(), (dim,), eps=1e-6).to(dtype).float() * weight.float()
    right = (normed.flatten(1) * F.silu(gate.float())).to(dtype)
    far = channels.to(device)[:, : heads * dim]
    found = gated_norm_triton(read.to(device), far, RmsNorm(weight.to(device), 1e-6))
    torch.testing.assert_close(found.cpu(), right, rtol=0, atol=TOLERANCES[dtype])
