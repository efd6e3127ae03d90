"""The output of a step: packed on the device, copied to the host while the next step runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from outrider.ops.sampling.logprobs import LogprobTensors
from outrider.ops.tree.draft_tree import VerifyResult
from outrider.step.device_stream import DeviceEvent
from outrider.step.host_copy import download
from outrider.step.shape import StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedOutput:
    """All integers of an output in one tensor, all reals in another, as in `pack_output`."""

    integers: torch.Tensor  # [n] int64
    reals: torch.Tensor  # [m] float32


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFault:
    """A token of a row that may not be used, and so none after it."""

    kind: int  # as in `SampledTokens`
    num_good: int  # tokens before it


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedTokens:
    """The emitted tokens of every row of a step."""

    num_accepted: list[int]  # [rows]
    drafted: list[int]  # [rows]
    emitted: list[list[int]]  # [rows, most_emitted]
    chunk_choice: list[int]  # [chunk.rows]
    decode_faults: Mapping[int, RowFault]  # of the rows that have one on their accepted path
    chunk_faults: Mapping[int, RowFault]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedDetails:
    """The log-probabilities and trees that some rows want."""

    path: list[list[int]]  # [rows, most_emitted]
    firsts: list[int]  # [rows] the query token of node 0
    logprobs: "UnpackedLogprobs"
    trees: "UnpackedTrees"
    hidden_states: np.ndarray  # [n, hidden] as in `pack_output`


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedLogprobs:
    """One entry per sampled query token, then per chunk token; empty when not wanted."""

    chosen: list[float]
    rank: list[int]
    top_ids: list[list[int]]
    top_values: list[list[float]]
    named_values: list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedTrees:
    """The drafted trees; empty when not wanted."""

    tokens: list[list[int]]  # [rows, nodes] -1 for an absent node; absent nodes come last
    parents: list[list[int]]  # [rows, nodes]


def pack_output(
    verify_result: VerifyResult,
    chunk_choice: torch.Tensor,  # [chunk.rows]
    faults: torch.Tensor,  # [num_sampled] as in `SampledTokens`
    logprobs: LogprobTensors,
    hidden_states: torch.Tensor,  # [n, hidden] as `StepShape.num_states` counts them
    trees: tuple[torch.Tensor, ...],  # tokens and parents [rows, nodes], or nothing
) -> PackedOutput:
    """One tensor per type, so that one copy each brings them to the host."""
    drafts = (
        verify_result.num_accepted,
        verify_result.drafted,
        verify_result.path,
        verify_result.emitted,
        chunk_choice,
        faults,
    )
    wanted = (logprobs.rank, logprobs.top_ids)
    return PackedOutput(
        integers=torch.cat([part.flatten() for part in (*drafts, *wanted, *trees)]),
        reals=torch.cat(
            [
                logprobs.chosen,
                logprobs.top_values.flatten(),
                logprobs.named_values.flatten(),
                hidden_states.float().flatten(),
            ]
        ),
    )


def copy_to_host(packed: PackedOutput) -> PackedOutput:
    """Start to copy an output to the host. The copy is valid after an event recorded now."""
    return PackedOutput(integers=_copy(packed.integers), reals=_copy(packed.reals))


def unpack_tokens(packed: PackedOutput, shape: StepShape) -> UnpackedTokens:
    """The tokens of a host copy that is complete."""
    parts = _cut(packed.integers, _token_sizes(shape))
    num_accepted, drafted, path, emitted, chunk_choice, faults = parts
    of_nodes, of_chunks = faults[: shape.num_decode_query], faults[shape.num_decode_query :]
    has_faults = bool(faults.any())  # rare
    return UnpackedTokens(
        num_accepted=num_accepted.tolist(),
        drafted=drafted.tolist(),
        emitted=emitted.reshape(shape.rows, shape.tree.most_emitted).tolist(),
        chunk_choice=chunk_choice.tolist(),
        decode_faults=_on_paths(of_nodes, path, num_accepted, drafted, shape) if has_faults else {},
        chunk_faults=_of_chunks(of_chunks) if has_faults else {},
    )


def first_queries(drafted: Sequence[int] | np.ndarray, shape: StepShape) -> np.ndarray:  # [rows]
    """The query token of node 0 of each row; the others of the row follow it."""
    if not shape.ragged:
        return np.arange(shape.rows) * shape.nodes
    counts = np.asarray(drafted, dtype=np.int64) + 1  # absent nodes do not run
    return np.cumsum(counts) - counts


def _of_chunks(faults: np.ndarray) -> dict[int, RowFault]:  # [chunk.rows]
    return {
        place: RowFault(kind=kind, num_good=0) for place, kind in enumerate(faults.tolist()) if kind
    }


def _on_paths(
    faults: np.ndarray,  # [num_decode_query]
    path: np.ndarray,  # [rows * most_emitted]
    num_accepted: np.ndarray,  # [rows]
    drafted: np.ndarray,  # [rows]
    shape: StepShape,
) -> dict[int, RowFault]:
    """The first fault on the accepted path of each row that has one."""
    firsts, found = first_queries(drafted, shape), {}
    for row, nodes in enumerate(path.reshape(shape.rows, shape.tree.most_emitted)):
        on_path = faults[firsts[row] + nodes[: num_accepted[row] + 1]]
        if on_path.any():
            num_good = int((on_path != 0).argmax())
            found[row] = RowFault(kind=int(on_path[num_good]), num_good=num_good)
    return found


def unpack_details(packed: PackedOutput, shape: StepShape) -> UnpackedDetails:
    """The details in a host copy that is complete."""
    wanted, top, named = (
        sum(shape.num_reported),
        shape.sampling_flags.top_logprobs,
        shape.sampling_flags.named_logprobs,
    )
    shown = shape.num_nodes if shape.sampling_flags.trees else 0
    sizes = [*_token_sizes(shape), wanted, wanted * top, shown, shown]
    _, drafted, path, _, _, _, rank, top_ids, tokens, parents = _cut(packed.integers, sizes)
    reals = [wanted, wanted * top, wanted * named]
    num_states = sum(shape.num_states)
    reals.append(packed.reals.numel() - sum(reals))  # all that is left
    chosen, values, others, states = _cut(packed.reals, reals)
    trees = (shape.rows if shape.sampling_flags.trees else 0, shape.nodes)
    return UnpackedDetails(
        path=path.reshape(shape.rows, shape.tree.most_emitted).tolist(),
        firsts=first_queries(drafted, shape).tolist(),
        logprobs=UnpackedLogprobs(
            chosen=chosen.tolist(),
            rank=rank.tolist(),
            top_ids=top_ids.reshape(wanted, top).tolist(),
            top_values=values.reshape(wanted, top).tolist(),
            named_values=others.reshape(wanted, named).tolist(),
        ),
        trees=UnpackedTrees(
            tokens=tokens.reshape(trees).tolist(), parents=parents.reshape(trees).tolist()
        ),
        hidden_states=states.reshape(num_states, -1) if num_states else states,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The output of one step, being copied to the host."""

    shape: StepShape
    started: DeviceEvent  # the step began
    ready: DeviceEvent  # the copy is complete
    packed: PackedOutput  # on the host, valid once `ready` has passed

    def wait(self) -> None:
        """Return once the copy is complete."""
        self.ready.wait()

    def tokens(self) -> UnpackedTokens:
        return unpack_tokens(self.packed, self.shape)

    def details(self) -> UnpackedDetails:
        return unpack_details(self.packed, self.shape)


def _token_sizes(shape: StepShape) -> list[int]:
    """Sizes of num_accepted, drafted, path, emitted, the choices of chunks, and faults."""
    rows, emitted = shape.rows, shape.rows * shape.tree.most_emitted
    return [rows, rows, emitted, emitted, shape.chunk.rows, shape.num_sampled]


def _cut(tensor: torch.Tensor, sizes: Sequence[int]) -> list[np.ndarray]:
    """The parts of a tensor in order, as numpy views: they cost less than torch views."""
    values, parts, first = tensor.numpy(), [], 0
    for size in sizes:
        parts.append(values[first : first + size])
        first += size
    return parts


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():
        return _NOTHING[tensor.dtype]
    return download(tensor)


_NOTHING = {dtype: torch.empty(0, dtype=dtype) for dtype in (torch.int64, torch.float32)}
