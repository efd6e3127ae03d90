"""What the kernels of recurrent layers must do on any device: interpreted on a CPU, compiled on a
GPU. The torch laws on a CPU say what is right.
"""

from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F

from outrider.kv.ring_plan import RingPlan, RingTokens
from outrider.models.recurrent.recurrence import Recurrence
from outrider.models.recurrent.recurrent_cache import StateStore
from outrider.models.recurrent.recurrent_plan import NEW_TEXT, RecurrentPlan, StateRows
from outrider.ops.recurrent import delta_rule as delta
from outrider.ops.recurrent import delta_rule_triton as kernels
from outrider.ops.recurrent.delta_chunk_triton import MIN_CHUNK
from outrider.ops.recurrent.delta_rule import DeltaRule
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import Budget

STATE_BY_BLOCKS = {torch.float32: 1e-4}  # products of half precision keep ten bits
STATE_BY_BLOCKS |= dict.fromkeys([torch.float16, torch.bfloat16], 1e-2)
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class DeltaCase:
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    accepted_counts: tuple[int, ...] = (0, 2, NEW_TEXT)  # of uniform rows, then of chunks
    nodes: int = 3
    chunks: tuple[int, ...] = (5,)  # tokens of each
    most: int = 4  # nodes that may be pending
    is_fixed: bool = False
    repeats: bool = False  # all tokens are alike, and hardly anything is forgotten

    @property
    def sizes(self) -> Recurrence:
        return Recurrence(
            layers=frozenset({0}),
            key_heads=self.key_heads,
            value_heads=self.value_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            window=4,
        )

    @property
    def is_one_by_one(self) -> bool:
        """Whether chunks take the same sums as the law, rather than those of blocks."""
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


def make_plan(case: DeltaCase) -> RecurrentPlan:
    counts = [case.nodes] * case.rows + list(case.chunks)
    num_chunk, num_rows = sum(case.chunks), len(counts)
    chunk = ChunkShape(rows=len(case.chunks), tokens=num_chunk, width=max(case.chunks, default=0))
    tree = Budget(steps=max(case.nodes - 1, 1), topk=1, nodes=case.nodes)
    shape = StepShape(
        rows=case.rows, tree=tree, chunk=chunk, pages=1, sampling_flags=SamplingFlags()
    )
    count = torch.tensor(counts)
    nothing = torch.zeros(0, dtype=torch.int64)
    return RecurrentPlan(
        shape=shape,
        query_index=torch.arange(shape.num_query),
        owners=torch.arange(num_rows).repeat_interleave(count),
        window=RingPlan(sources=nothing, writes=nothing),
        states=StateRows(
            rows=torch.randperm(num_rows) + 1,
            accepted_counts=torch.tensor(case.accepted_counts),
            firsts=count.cumsum(0) - count,
            counts=count,
        ),
        paged=(),
    )


def check_recurrence(case: DeltaCase, where, seed: int = 0) -> None:
    """What is read, what the states become, and what is left pending."""
    torch.manual_seed(seed)
    device, dtype = where
    sizes, plan = case.sizes, make_plan(case)
    num_query, table_rows = plan.shape.num_query, len(case.accepted_counts) + 2
    law = DeltaRule(
        sizes=sizes,
        conv_weight=torch.zeros(0),
        decay_scale=-torch.rand(sizes.value_heads) * (1e-3 if case.repeats else 1.0),
        dt_bias=torch.randn(sizes.value_heads),
        is_fixed=case.is_fixed,
    )
    heads = (table_rows, sizes.value_heads, sizes.key_dim, sizes.value_dim)
    store = StateStore(
        window=torch.zeros(0),
        node_inputs=torch.randn(table_rows, case.most, sizes.node_inputs).to(dtype),
        state=torch.randn(heads),
    )
    # Lanes come as parts of a wider map.
    channels = torch.randn(num_query, sizes.qkv + 2 * sizes.value_heads + 3).to(dtype)
    if case.repeats:
        channels = channels[:1].repeat(num_query, 1)
        channels[:, sizes.qkv : sizes.qkv + sizes.value_heads] = 6.0  # rates near one
    there = moved(store, device)
    qkv, gates = channels[:, : sizes.qkv], channels[:, sizes.qkv : -3]
    right = delta.gated_delta_rule(qkv, gates, store, plan, law)
    far = channels.to(device)
    far_plan = replace(plan, states=moved(plan.states, device))
    found = delta.recur_on_gpu(
        far[:, : sizes.qkv], far[:, sizes.qkv : -3], there, far_plan, moved(law, device)
    )
    close = {"rtol": 0, "atol": TOLERANCES[dtype]}
    torch.testing.assert_close(found.cpu(), right, **close)
    atol = 2e-5 if case.is_one_by_one else STATE_BY_BLOCKS[dtype]
    torch.testing.assert_close(there.state.cpu(), store.state, rtol=0, atol=atol)
    assert torch.equal(there.node_inputs.cpu(), store.node_inputs)


def check_mixing(num_query: int, width: int, window: int, where, seed: int = 0) -> None:
    torch.manual_seed(seed)
    device, dtype = where
    slots = 11
    ring, channels = (
        torch.randn(slots, width).to(dtype),
        torch.randn(num_query, width + 5).to(dtype),
    )
    sources = torch.randint(-1, slots + num_query, (num_query, window))
    conv_weight = torch.randn(width, window)
    part = RingPlan(sources=sources, writes=sources[:, 0])
    right = delta.causal_conv(RingTokens(ring, channels[:, :width]), part, conv_weight)
    far = [each.to(device) for each in (ring, channels, sources, conv_weight)]
    found = kernels.causal_conv(far[0], far[1][:, :width], far[2], far[3])
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
    found = kernels.gated_norm(read.to(device), far, weight.to(device), 1e-6)
    torch.testing.assert_close(found.cpu(), right, rtol=0, atol=TOLERANCES[dtype])
