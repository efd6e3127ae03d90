"""Dummy runs before the first request: to capture graphs, and to measure memory."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from outrider.ops.linear.linear_limits import MOST_SKINNY_ROWS
from outrider.runtime.runner import Runner
from outrider.step.buckets import Buckets
from outrider.step.graph_executor import MAX_CAPTURED_TOKENS
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import PLAIN_RUNG, Rung
from outrider.wire.runner_facts import OnProgress

_NO_CHUNK = ChunkShape(rows=0, tokens=0, width=0)
_USUAL_CONTEXT = 4096  # tokens
_FEW_ROWS = 4  # up to here, shapes with draft traces are captured too: the chat page uses them


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """The cost of capturing before the first request."""

    num_shapes: int
    seconds: float
    device_bytes: int


Rungs = Callable[[int], Iterable[Rung]]  # how much steps with so many rows may draft


def list_shapes(largest: StepShape, buckets: Buckets, rungs: Rungs) -> list[StepShape]:
    """The usual shapes, the largest first: the others fit into its memory.

    Decode rows and mixed steps of all numbers of rows and all rungs, in contexts of up to 4,096
    tokens. Steps with other shapes are rare; they are captured when they come, or covered.
    """
    shapes: dict[StepShape, None] = {}
    fewer = 0
    for rows in buckets.rows.upto(largest.rows):
        for rung in dict.fromkeys((*rungs(fewer + 1), *rungs(rows))):
            shapes |= dict.fromkeys(_decode_shapes(rows, rung, buckets))
            shapes |= dict.fromkeys(_mixed_shapes(rows, rung, largest, buckets))
        fewer = rows
    shapes |= dict.fromkeys(_mixed_shapes(0, PLAIN_RUNG, largest, buckets))
    return sorted(shapes, key=lambda shape: (shape.num_query, shape.pages), reverse=True)


def _decode_shapes(rows: int, rung: Rung, buckets: Buckets) -> Iterator[StepShape]:
    most = _USUAL_CONTEXT // buckets.page_size if buckets.is_width_free else 1
    shape = decode_shape(rows, rung, buckets)
    for pages, flags in itertools.product(buckets.pages.upto(most), _usual_flags(rows)):
        yield replace(shape, pages=pages, sampling_flags=flags)


def decode_shape(rows: int, rung: Rung, buckets: Buckets) -> StepShape:
    """A step of decode rows that sample, in the shortest contexts."""
    return StepShape(
        rows=rows,
        tree=rung.tree,
        chunk=_NO_CHUNK,
        pages=buckets.pages.up(1),
        sampling_flags=SamplingFlags(noise=True),
        ragged=_ragged(rows, rung),
    )


def _ragged(rows: int, rung: Rung) -> int:
    """Query tokens that rows share if every row has a request, as `Buckets.fit` has it."""
    return rows * rung.nodes if rung.nodes < rung.tree.nodes else 0


def _mixed_shapes(
    rows: int, rung: Rung, largest: StepShape, buckets: Buckets
) -> Iterator[StepShape]:
    """Steps with chunks, where chunks of any lengths share a shape. They all sample with noise:
    that covers greedy rows.
    """
    if not buckets.is_width_free:
        return
    num_decode_query = rows * rung.nodes
    for total in buckets.tokens.upto(MAX_CAPTURED_TOKENS):
        tokens = total - num_decode_query
        if 0 < tokens <= largest.chunk.tokens:
            yield StepShape(
                rows=rows,
                tree=rung.tree,
                chunk=ChunkShape(rows=largest.chunk.rows, tokens=tokens, width=tokens),
                pages=buckets.chunk_pages.up(1),
                sampling_flags=SamplingFlags(noise=True),
                ragged=_ragged(rows, rung),
            )


def _usual_flags(rows: int) -> Iterator[SamplingFlags]:
    for noise in (False, True):
        yield SamplingFlags(noise=noise)
        if rows <= _FEW_ROWS:
            yield SamplingFlags(noise=noise, trees=True)


def warm_up(
    runner: Runner, shapes: list[StepShape], device: torch.device, on_progress: OnProgress
) -> WarmUp:
    """Capture each shape. The first of each kind runs too, which compiles its kernels."""
    began, before = time.perf_counter(), _device_bytes(device)
    met: set[object] = set()
    for done, shape in enumerate(shapes):
        on_progress(done, len(shapes))
        kinds = _kinds(shape)
        if kinds <= met:
            runner.prepare(shape)
        else:
            runner.dummy_run(shape)
            met |= kinds
    on_progress(len(shapes), len(shapes))
    return WarmUp(
        num_shapes=len(shapes),
        seconds=time.perf_counter() - began,
        device_bytes=_device_bytes(device) - before,
    )


def _kinds(shape: StepShape) -> set[object]:
    """What decides the kernels of a step. Linear layers of many rows choose theirs by the number of
    rows, and compare it with another before the first capture.
    """
    parts = bool(shape.rows), bool(shape.chunk.rows), bool(shape.ragged)
    sizes = {("layers", shape.num_query), ("logits", shape.num_sampled)}
    many = {(name, num) for name, num in sizes if num > MOST_SKINNY_ROWS}
    return {(shape.tree, *parts, shape.sampling_flags), *many}


def take_memory(runner: Runner, largest: StepShape, device: torch.device) -> int:
    """Run the largest steps and return how many bytes they took.

    The allocator keeps the memory of their activations for later steps.
    """
    before = _device_bytes(device)
    runner.dummy_run(replace(largest, chunk=_NO_CHUNK))
    runner.dummy_run(largest)
    return _device_bytes(device) - before


def _device_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free
