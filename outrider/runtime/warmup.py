"""Dummy runs before the first request: to capture graphs, and to measure memory."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from outrider.runtime.runner import Runner
from outrider.step.buckets import Buckets
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import PLAIN
from outrider.wire.runner_facts import OnProgress

_NO_CHUNK = ChunkShape(rows=0, tokens=0, width=0)
_FEW_ROWS = 4  # up to here, shapes with draft traces are captured too: the chat page uses them


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """The cost of capturing before the first request."""

    num_shapes: int
    seconds: float
    device_bytes: int


def list_shapes(largest: StepShape, buckets: Buckets) -> Iterator[StepShape]:
    """The usual shapes: every number of rows, plain and with the largest tree, short contexts."""
    pages = buckets.pages.up(1)
    trees = dict.fromkeys((largest.tree, PLAIN))
    sizes = dict.fromkeys(buckets.rows.up(rows) for rows in range(1, largest.rows + 1))
    for rows in reversed(sizes):  # the largest first: the others fit into its memory
        for tree in trees:
            for sampling_flags in _usual_flags(rows):
                yield StepShape(
                    rows=rows,
                    tree=tree,
                    chunk=_NO_CHUNK,
                    pages=pages,
                    sampling_flags=sampling_flags,
                )


def _usual_flags(rows: int) -> Iterator[SamplingFlags]:
    for noise in (False, True):
        yield SamplingFlags(noise=noise)
        if rows <= _FEW_ROWS:
            yield SamplingFlags(noise=noise, trees=True)


def warm_up(
    runner: Runner, shapes: list[StepShape], device: torch.device, on_progress: OnProgress
) -> WarmUp:
    """Run each shape once, which captures it."""
    began, before = time.perf_counter(), _device_bytes(device)
    for done, shape in enumerate(shapes):
        on_progress(done, len(shapes))
        runner.dummy_run(shape)
    on_progress(len(shapes), len(shapes))
    return WarmUp(
        num_shapes=len(shapes),
        seconds=time.perf_counter() - began,
        device_bytes=_device_bytes(device) - before,
    )


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
