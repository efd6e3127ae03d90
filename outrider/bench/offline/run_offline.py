"""`outrider bench offline`: engines one after another on one machine, the same work for each.

Every number is the median of several runs after one complete run that does not count. The speeds
are defined in `run_trace`, the floor in `decode_floor`.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from outrider.bench.bandwidth import read_bandwidth
from outrider.bench.busy_process import busy_process
from outrider.bench.machine import this_machine
from outrider.bench.offline.decode_floor import DecodeFloor
from outrider.bench.offline.offline_args import OfflineArgs
from outrider.bench.offline.offline_report import (
    OURS,
    Decode,
    EngineResult,
    OfflineReport,
    OfflineSetting,
)
from outrider.bench.offline.run_trace import decode_speed, first_token_s
from outrider.bench.offline.step_bytes import step_bytes
from outrider.bench.offline.workload import Workload
from outrider.bench.peers.outrider_peer import OurEngine
from outrider.bench.peers.peer_protocol import Peer, PeerModel
from outrider.config.engine_config import Dtype
from outrider.models.target import read_target

Note = Callable[[str], None]  # called with the name of every run as it begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An engine with weights of one type, before it is loaded."""

    engine: str
    version: str
    dtype: Dtype
    load: Callable[[], Peer]


def run_offline(
    model: str, source: PeerModel, args: OfflineArgs, workload: Workload, note: Note
) -> OfflineReport:
    """Measure one engine after another, and the bandwidth before and after them.

    Disturbances only lower the measured bandwidth, so the larger value counts.
    """
    machine = this_machine(has_busy_neighbour=args.has_busy_neighbour)
    bandwidth = read_bandwidth()
    folder = source.folder
    entries = [*_our_entries(folder, args, machine.outrider), *_peer_entries(source, args)]
    with busy_process() if args.has_busy_neighbour else nullcontext():
        results = tuple(_measure(entry, args, workload, note) for entry in entries)
    bandwidth = max(bandwidth, read_bandwidth())
    return OfflineReport(
        setting=OfflineSetting(
            model=model, machine=machine, workload=workload, bandwidth=bandwidth
        ),
        floors=tuple(_floors(folder, args, {entry.dtype for entry in entries}, bandwidth)),
        results=results,
        missing={peer.name: why for peer in args.peers if (why := peer.why_not(source))},
    )


def count_offline_runs(args: OfflineArgs, source: PeerModel) -> int:
    """How often `note` will be called."""
    measured = (peer for peer in args.peers if not peer.why_not(source))
    num_entries = len(args.dtypes) + sum(len(p.dtypes_for(args.dtypes)) for p in measured)
    num_quantities = 1 + len(args.batches)  # the first token, and decoding at each batch size
    return num_entries * num_quantities * (1 + args.repetitions)


def _our_entries(folder: Path, args: OfflineArgs, version: str) -> Iterator[Entry]:
    engine = partial(OurEngine, folder, lengths=args.lengths, max_batch=max(args.batches))
    for dtype in args.dtypes:
        load = partial(engine, dtype=dtype)
        yield Entry(engine=OURS, version=version, dtype=dtype, load=load)


def _peer_entries(source: PeerModel, args: OfflineArgs) -> Iterator[Entry]:
    for peer in args.peers:
        if peer.why_not(source):
            continue
        for dtype in peer.dtypes_for(args.dtypes):
            load = partial(peer.load, source, dtype)
            yield Entry(engine=peer.name, version=peer.version, dtype=dtype, load=load)


def _measure(entry: Entry, args: OfflineArgs, workload: Workload, note: Note) -> EngineResult:
    """Load one engine, time it, and free it before the next is loaded."""
    peer, name = entry.load(), f"{entry.engine} {entry.dtype}"
    prompts, answer = workload.prompts, workload.lengths.answer
    first, decodes = [], []
    for _ in range(1 + args.repetitions):
        note(f"{name}, first token")
        first.append(first_token_s(peer.run(prompts[:1], max_tokens=1)))
    for batch in args.batches:
        speeds = []
        for _ in range(1 + args.repetitions):
            note(f"{name}, batch {batch}")
            speeds.append(decode_speed(peer.run(prompts[:batch], max_tokens=answer)))
        decodes.append(Decode(batch=batch, runs=tuple(speeds[1:])))  # the first run warmed up
    del peer
    gc.collect()  # models hold reference cycles
    return EngineResult(
        engine=entry.engine,
        version=entry.version,
        dtype=entry.dtype,
        first_token_runs_s=tuple(first[1:]),
        decodes=tuple(decodes),
    )


def _floors(
    folder: Path, args: OfflineArgs, dtypes: set[Dtype], bandwidth: float
) -> Iterator[DecodeFloor]:
    config, context = read_target(folder), args.lengths.mean_context
    for dtype in sorted(dtypes):
        for batch in args.batches:
            read = step_bytes(config, dtype, rows=batch, nodes=1, context=context)
            yield DecodeFloor(
                dtype=dtype,
                batch=batch,
                weight_bytes=read.weights,
                kv_bytes=read.kv,
                bandwidth=bandwidth,
            )
