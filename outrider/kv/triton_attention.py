"""Attention by our own Triton kernels: decode rows and chunks, over paged KV on the device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from outrider.config.draft_config import MAX_NODES
from outrider.config.settings import MAX_PAGE
from outrider.kv.head_shape import HeadShape
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.decode_triton import attend_decode
from outrider.ops.attention.latent_decode_triton import attend_latent_decode, num_latent_partials
from outrider.ops.attention.latent_prefill_triton import attend_latent_chunks
from outrider.ops.attention.prefill_triton import attend_chunks, place_chunks
from outrider.ops.attention.splits_triton import num_partials, partial_width
from outrider.ops.attention.tree_paths_triton import trace_paths
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionScope, Capabilities
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape

Kernel = Callable[..., None]  # attends for queries over a layer, into an output


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePart:
    """What the layers of a step share about its decode rows."""

    pages: torch.Tensor  # [rows, pages] int32, the pages of each row in order
    lengths: torch.Tensor  # [rows] int32 cached tokens
    queries: torch.Tensor  # int32, as in `DecodeTexts`
    limits: torch.Tensor  # [rows * nodes] int32 length of each node's text, itself included
    tails: torch.Tensor  # [rows * nodes, 64] int32 nodes of its path in order, then the others
    partials: torch.Tensor  # float32 results of single splits, written and read by every layer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPart:
    """What the layers of a step share about its chunks."""

    pages: torch.Tensor  # [chunk.rows, pages] int32
    bounds: torch.Tensor  # [3, chunk.rows] int32 start, first flat token, number of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPlan(AttentionPlan):
    """The backend's part of a plan."""

    shape: StepShape
    decode: DecodePart
    chunk: ChunkPart


class TritonAttention:
    """Attention whose result for a node does not depend on tree, batch or padding.

    Its workspace holds one partial result per split of a text: num_decode_query * splits * heads *
    (head_dim + 2) * 4 bytes, with 4 splits for 1k positions, 32 for 8k and 64 for 128k (latents
    are split otherwise): 34 MB for 64 rows of one node and 32 heads of 128 at 8k. It never exceeds
    256 MiB: larger steps run their rows in groups.
    """

    def __init__(self, *, page_size: int, users: Sequence[HeadShape]) -> None:
        self._page_size = page_size
        self._users = tuple(users)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_nodes=MAX_NODES,
            chain_only=False,
            is_ragged=True,
            page_sizes=range(1, MAX_PAGE + 1),
            max_head_dim=256,
            max_group=16,
            max_latent=512,
            needs_host_lengths=False,
        )

    def reserve(self, arena: Arena, largest: StepShape) -> None:
        rows, tokens, chunks = largest.rows, largest.num_nodes, largest.chunk.rows
        arena.reserve("attention.decode.pages", rows * largest.pages, torch.int32)
        arena.reserve("attention.decode.lengths", rows, torch.int32)
        arena.reserve("attention.decode.queries", tokens, torch.int32)
        arena.reserve("attention.decode.limits", tokens, torch.int32)
        arena.reserve("attention.decode.tails", tokens * MAX_NODES, torch.int32)
        arena.reserve("attention.decode.partials", self._num_partials(largest), torch.float32)
        arena.reserve("attention.chunk.pages", chunks * largest.pages, torch.int32)
        arena.reserve("attention.chunk.bounds", 3 * chunks, torch.int32)

    def bind(self, arena: Arena, shape: StepShape) -> TritonPlan:
        tokens, chunks = shape.num_nodes, shape.chunk.rows
        return TritonPlan(
            shape=shape,
            decode=DecodePart(
                pages=arena.view("attention.decode.pages", shape.rows, shape.pages),
                lengths=arena.view("attention.decode.lengths", shape.rows),
                queries=arena.view("attention.decode.queries", tokens if shape.ragged else 0),
                limits=arena.view("attention.decode.limits", tokens),
                tails=arena.view("attention.decode.tails", tokens, MAX_NODES),
                partials=arena.view("attention.decode.partials", self._num_partials(shape)),
            ),
            chunk=ChunkPart(
                pages=arena.view("attention.chunk.pages", chunks, shape.pages),
                bounds=arena.view("attention.chunk.bounds", 3, chunks),
            ),
        )

    def fill(self, plan: AttentionPlan, scope: AttentionScope) -> None:
        assert isinstance(plan, TritonPlan)
        decode, chunk = scope.decode, scope.chunk
        if plan.shape.rows:
            trace_paths(
                decode.rows,
                decode.lengths,
                scope.ancestors,
                scope.page_table,
                queries=scope.queries if plan.shape.ragged else scope.queries[:0],
                out_pages=plan.decode.pages,
                out_lengths=plan.decode.lengths,
                out_queries=plan.decode.queries,
                limits=plan.decode.limits,
                tails=plan.decode.tails,
            )
        if plan.shape.chunk.rows:
            place_chunks(
                chunk.rows,
                chunk.starts,
                chunk.counts,
                scope.page_table,
                out_pages=plan.chunk.pages,
                bounds=plan.chunk.bounds,
            )

    def write_slots(
        self,
        plan: AttentionPlan,
        slots: torch.Tensor,  # [num_query]
    ) -> torch.Tensor:  # [num_query]
        del plan
        return slots

    def run(
        self,
        query: torch.Tensor,  # [num_query, heads, head_dim]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        plan: AttentionPlan,
        rule: AttentionRule,
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        assert isinstance(plan, TritonPlan)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        decode = partial(attend_decode, queries=plan.decode.queries, rule=rule)
        _attend((decode, partial(attend_chunks, rule=rule)), query, layer, out, plan)
        return out

    def run_latent(
        self,
        query: torch.Tensor,  # [num_query, heads, width]
        layer: torch.Tensor,  # [pages, page_size, 1, width]
        plan: AttentionPlan,
        scale: float,
        latent: int,
    ) -> torch.Tensor:  # [num_query, heads, latent]
        assert isinstance(plan, TritonPlan)
        out = torch.empty((*query.shape[:2], latent), dtype=query.dtype, device=query.device)
        decode = partial(attend_latent_decode, queries=plan.decode.queries, scale=scale)
        chunks = partial(attend_latent_chunks, scale=scale)
        _attend((decode, chunks), query, layer, out, plan)
        return out

    def _num_partials(self, shape: StepShape) -> int:
        keys = shape.pages * self._page_size
        return max(
            (
                _num_partials(user, rows=shape.rows, nodes=shape.nodes, keys=keys)
                for user in self._users
            ),
            default=0,
        )


def _num_partials(user: HeadShape, *, rows: int, nodes: int, keys: int) -> int:
    heads, read = user.heads, user.head_dim
    if user.is_latent:
        return num_latent_partials(rows=rows, nodes=nodes, keys=keys, heads=heads, latent=read)
    width = partial_width(heads, read)
    return num_partials(rows=rows, nodes=nodes, keys=keys, width=width)


def _attend(
    kernels: tuple[Kernel, Kernel],  # of decode rows, and of chunks
    query: torch.Tensor,
    layer: torch.Tensor,
    out: torch.Tensor,
    plan: TritonPlan,
) -> None:
    """Decode rows, then chunks, where the step has any."""
    for_decode, for_chunks = kernels
    num_decode_query, part = plan.shape.num_decode_query, plan.decode
    if plan.shape.rows:
        for_decode(
            query[:num_decode_query],
            layer,
            out[:num_decode_query],
            pages=part.pages,
            lengths=part.lengths,
            limits=part.limits,
            tails=part.tails,
            partials=part.partials,
            is_tree=_is_tree(plan.shape),
        )
    if plan.shape.chunk.rows:
        for_chunks(
            query[num_decode_query:],
            layer,
            out[num_decode_query:],
            pages=plan.chunk.pages,
            bounds=plan.chunk.bounds,
        )


def _is_tree(shape: StepShape) -> bool:
    """Whether a node's path may skip nodes; the keys of a chain lie at their own positions."""
    return shape.nodes > 1 and shape.tree.topk > 1
