"""A step's output on its way to the host: packed on the device, copied while the next step runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.plan.shape import StepShape
from outrider.plan.tree import Verdict
from outrider.sampling.logprobs import LogprobTensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """All integers of an output in one tensor, all reals in another, in the order of `unpack`."""

    integers: torch.Tensor  # [n] int64
    reals: torch.Tensor  # [m] float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """The output on the host, as nested lists."""

    kept: list[int]  # [rows]
    drafted: list[int]  # [rows]
    path: list[list[int]]  # [rows, most_emitted]
    emitted: list[list[int]]  # [rows, most_emitted]
    chunk_choice: list[int]  # [chunk.rows]
    logprobs: "UnpackedLogprobs"
    trees: "UnpackedTrees"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedLogprobs:
    """Of every sampled query token, then of every chunk token; empty when nobody asked."""

    chosen: list[float]
    rank: list[int]
    top_ids: list[list[int]]
    top_values: list[list[float]]
    named_values: list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedTrees:
    """What was drafted; empty when nobody asked."""

    tokens: list[list[int]]  # [rows, nodes] -1 for an absent node, and those are the last ones
    parents: list[list[int]]  # [rows, nodes]


def pack(
    verdict: Verdict,
    chunk_choice: torch.Tensor,  # [chunk.rows]
    logprobs: LogprobTensors,
    trees: tuple[torch.Tensor, ...],  # tokens and parents [rows, nodes], or nothing
) -> Packed:
    """One tensor per type, so that one copy each takes them home."""
    drafts = (verdict.kept, verdict.drafted, verdict.path, verdict.emitted, chunk_choice)
    asked = (logprobs.rank, logprobs.top_ids)
    return Packed(
        integers=torch.cat([part.flatten() for part in (*drafts, *asked, *trees)]),
        reals=torch.cat(
            [logprobs.chosen, logprobs.top_values.flatten(), logprobs.named_values.flatten()]
        ),
    )


def send(packed: Packed) -> Packed:
    """Host copies, on their way: to be read after a mark of the lane has passed."""
    return Packed(integers=_send(packed.integers), reals=_send(packed.reals))


def unpack(packed: Packed, shape: StepShape) -> Unpacked:
    """The parts of a host copy that has arrived."""
    rows, wide, top = shape.rows, shape.tree.most_emitted, shape.warps.top_logprobs
    asked, named = sum(shape.num_reported), shape.warps.named_logprobs
    shown = rows if shape.warps.trees else 0
    sizes = [rows, rows, rows * wide, rows * wide, shape.chunk.rows, asked, asked * top]
    parts = _split(packed.integers, [*sizes, shown * shape.nodes, shown * shape.nodes])
    chosen, values, others = _split(packed.reals, [asked, asked * top, asked * named])
    return Unpacked(
        kept=parts[0].tolist(),
        drafted=parts[1].tolist(),
        path=parts[2].view(rows, wide).tolist(),
        emitted=parts[3].view(rows, wide).tolist(),
        chunk_choice=parts[4].tolist(),
        logprobs=UnpackedLogprobs(
            chosen=chosen.tolist(),
            rank=parts[5].tolist(),
            top_ids=parts[6].view(asked, top).tolist(),
            top_values=values.view(asked, top).tolist(),
            named_values=others.view(asked, named).tolist(),
        ),
        trees=UnpackedTrees(
            tokens=parts[7].view(shown, shape.nodes).tolist(),
            parents=parts[8].view(shown, shape.nodes).tolist(),
        ),
    )


def _send(tensor: torch.Tensor) -> torch.Tensor:
    # Pinned memory comes from a cache that knows when the copy into it is over.
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True) if tensor.numel() else host


def _split(tensor: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return torch.split(tensor, list(sizes))
