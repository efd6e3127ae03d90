"""Runs steps for nobody before the first request: to record them, and to see what they take."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from outrider.runtime.runner import Runner
from outrider.step.buckets import Buckets
from outrider.step.shape import ChunkShape, StepShape, Warps
from outrider.wire.draft_budget import PLAIN

Heard = Callable[[int, int], None]  # how many shapes are done, and of how many

_NO_CHUNK = ChunkShape(rows=0, tokens=0, width=0)
_FEW_ROWS = 4  # whose drafts are traced: the chat page asks for that, and is read by people


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What recording before the first request cost."""

    num_shapes: int
    seconds: float
    device_bytes: int


def nobody_hears(done: int, total: int) -> None:
    del done, total


def list_shapes(largest: StepShape, buckets: Buckets) -> Iterator[StepShape]:
    """The steps of a quiet day: every number of rows, plain and with the largest tree, short."""
    pages = buckets.pages.up(1)
    trees = dict.fromkeys((largest.tree, PLAIN))
    sizes = dict.fromkeys(buckets.rows.up(rows) for rows in range(1, largest.rows + 1))
    for rows in reversed(sizes):  # the largest first: the others fit into its memory
        for tree in trees:
            for warps in _usual_warps(rows):
                yield StepShape(rows=rows, tree=tree, chunk=_NO_CHUNK, pages=pages, warps=warps)


def _usual_warps(rows: int) -> Iterator[Warps]:
    for noise in (False, True):
        yield Warps(noise=noise)
        if rows <= _FEW_ROWS:
            yield Warps(noise=noise, trees=True)


def warm_up(runner: Runner, shapes: list[StepShape], device: torch.device, heard: Heard) -> WarmUp:
    """Run each shape once, which records it."""
    began, before = time.perf_counter(), _device_bytes(device)
    for done, shape in enumerate(shapes):
        heard(done, len(shapes))
        runner.practise(shape)
    heard(len(shapes), len(shapes))
    return WarmUp(
        num_shapes=len(shapes),
        seconds=time.perf_counter() - began,
        device_bytes=_device_bytes(device) - before,
    )


def take_memory(runner: Runner, largest: StepShape, device: torch.device) -> int:
    """Run the largest steps there can be and say how many bytes they took.

    The allocator keeps what their activations took for the steps to come.
    """
    before = _device_bytes(device)
    runner.practise(replace(largest, chunk=_NO_CHUNK))
    runner.practise(largest)
    return _device_bytes(device) - before


def _device_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free
