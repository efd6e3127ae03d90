"""A step's output: packed on the device, copied to the host while the next step runs, unpacked."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from outrider.ops.sampling.logprobs import LogprobTensors
from outrider.ops.tree.draft_tree import VerifyResult
from outrider.step.host_copy import download
from outrider.step.shape import StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedOutput:
    """All integers of an output in one tensor, all reals in another, in the order of `pack`."""

    integers: torch.Tensor  # [n] int64
    reals: torch.Tensor  # [m] float32


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedTokens:
    """The tokens of every row of a step, on the host."""

    num_accepted: list[int]  # [rows]
    drafted: list[int]  # [rows]
    emitted: list[list[int]]  # [rows, most_emitted]
    chunk_choice: list[int]  # [chunk.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedDetails:
    """What only some requests want, on the host."""

    path: list[list[int]]  # [rows, most_emitted]
    logprobs: "UnpackedLogprobs"
    trees: "UnpackedTrees"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedLogprobs:
    """Of every sampled query token, then of every chunk token; empty if no row wants them."""

    chosen: list[float]
    rank: list[int]
    top_ids: list[list[int]]
    top_values: list[list[float]]
    named_values: list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedTrees:
    """Draft trees; empty if no row wants them."""

    tokens: list[list[int]]  # [rows, nodes] -1 for absent nodes, which are the last ones
    parents: list[list[int]]  # [rows, nodes]


def pack_output(
    verify_result: VerifyResult,
    chunk_choice: torch.Tensor,  # [chunk.rows]
    logprobs: LogprobTensors,
    trees: tuple[torch.Tensor, ...],  # tokens and parents [rows, nodes], or nothing
) -> PackedOutput:
    """One tensor per type, so that one copy per type is enough."""
    drafts = (
        verify_result.num_accepted,
        verify_result.drafted,
        verify_result.path,
        verify_result.emitted,
        chunk_choice,
    )
    reported = (logprobs.rank, logprobs.top_ids)
    return PackedOutput(
        integers=torch.cat([part.flatten() for part in (*drafts, *reported, *trees)]),
        reals=torch.cat(
            [logprobs.chosen, logprobs.top_values.flatten(), logprobs.named_values.flatten()]
        ),
    )


def copy_to_host(packed: PackedOutput) -> PackedOutput:
    """Host copies in flight: they are valid after an event recorded behind them has passed."""
    return PackedOutput(integers=_send(packed.integers), reals=_send(packed.reals))


def unpack_tokens(packed: PackedOutput, shape: StepShape) -> UnpackedTokens:
    """The tokens of a finished host copy."""
    num_accepted, drafted, _, emitted, chunk_choice = _cut(packed.integers, _token_sizes(shape))
    return UnpackedTokens(
        num_accepted=num_accepted.tolist(),
        drafted=drafted.tolist(),
        emitted=emitted.reshape(shape.rows, shape.tree.most_emitted).tolist(),
        chunk_choice=chunk_choice.tolist(),
    )


def unpack_details(packed: PackedOutput, shape: StepShape) -> UnpackedDetails:
    """Everything else in a finished host copy."""
    num, top, named = (
        sum(shape.num_reported),
        shape.sampling_flags.top_logprobs,
        shape.sampling_flags.named_logprobs,
    )
    num_nodes = shape.num_decode_query if shape.sampling_flags.trees else 0
    sizes = [*_token_sizes(shape), num, num * top, num_nodes, num_nodes]
    _, _, path, _, _, rank, top_ids, tokens, parents = _cut(packed.integers, sizes)
    chosen, values, others = _cut(packed.reals, [num, num * top, num * named])
    trees = (shape.rows if shape.sampling_flags.trees else 0, shape.nodes)
    return UnpackedDetails(
        path=path.reshape(shape.rows, shape.tree.most_emitted).tolist(),
        logprobs=UnpackedLogprobs(
            chosen=chosen.tolist(),
            rank=rank.tolist(),
            top_ids=top_ids.reshape(num, top).tolist(),
            top_values=values.reshape(num, top).tolist(),
            named_values=others.reshape(num, named).tolist(),
        ),
        trees=UnpackedTrees(
            tokens=tokens.reshape(trees).tolist(), parents=parents.reshape(trees).tolist()
        ),
    )


def _token_sizes(shape: StepShape) -> list[int]:
    """Sizes of num_accepted, drafted, path, emitted and the choices of chunks."""
    rows, emitted = shape.rows, shape.rows * shape.tree.most_emitted
    return [rows, rows, emitted, emitted, shape.chunk.rows]


def _cut(tensor: torch.Tensor, sizes: Sequence[int]) -> list[np.ndarray]:
    """The parts of a tensor in order, as numpy views, which are cheaper than torch views."""
    values, parts, first = tensor.numpy(), [], 0
    for size in sizes:
        parts.append(values[first : first + size])
        first += size
    return parts


def _send(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():
        return _EMPTY[tensor.dtype]
    return download(tensor)


_EMPTY = {dtype: torch.empty(0, dtype=dtype) for dtype in (torch.int64, torch.float32)}
