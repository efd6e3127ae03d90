"""`outrider bench offline`: engines one after another on one machine, the same work for each.

Every quantity is the median of several runs after one complete run that is thrown away. What the
speeds mean is defined in `trace`, the floor in `floor`.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from outrider.bench.bandwidth import read_bandwidth
from outrider.bench.floor import Floor, kv_bytes, weight_bytes
from outrider.bench.machine import this_machine
from outrider.bench.neighbour import busy_neighbour, no_neighbour
from outrider.bench.peers.catalogue import PeerPackage
from outrider.bench.peers.ours import OurEngine
from outrider.bench.peers.protocol import Peer
from outrider.bench.report import OURS, Decode, EngineResult, OfflineReport, Setting
from outrider.bench.trace import Trace, decode_speed, first_token_s
from outrider.bench.workload import Workload
from outrider.config.engine import Dtype
from outrider.models.config import read_config

Note = Callable[[str], None]  # hears what runs next, once for every run


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConfig:
    """What to measure, besides the work itself."""

    folder: Path
    dtypes: tuple[Dtype, ...]
    batches: tuple[int, ...]
    peers: tuple[PeerPackage, ...]
    repetitions: int
    has_busy_neighbour: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An engine with its weights' type, before it is loaded."""

    engine: str
    version: str
    dtype: Dtype
    load: Callable[[], Peer]


def count_runs(config: OfflineConfig) -> int:
    """How often `note` will be called."""
    num_peers = sum(len(p.dtypes_for(config.dtypes)) for p in config.peers if p.is_installed)
    quantities = 1 + len(config.batches)  # the first token, and decoding at each batch
    return (len(config.dtypes) + num_peers) * quantities * (1 + config.repetitions)


def run_offline(model: str, config: OfflineConfig, workload: Workload, note: Note) -> OfflineReport:
    """Measure the bandwidth of the quiet machine, then every engine in turn."""
    machine = this_machine(has_busy_neighbour=config.has_busy_neighbour)
    bandwidth = read_bandwidth()
    entries = (*_our_entries(config, workload, machine.outrider), *_peer_entries(config))
    with busy_neighbour() if config.has_busy_neighbour else no_neighbour():
        results = tuple(_measure(entry, config, workload, note) for entry in entries)
    return OfflineReport(
        setting=Setting(model=model, machine=machine, workload=workload, bandwidth=bandwidth),
        floors=tuple(_floors(config, workload, {r.dtype for r in results}, bandwidth)),
        results=results,
        missing=tuple(peer.name for peer in config.peers if not peer.is_installed),
    )


def _our_entries(config: OfflineConfig, workload: Workload, version: str) -> Iterator[_Entry]:
    for dtype in config.dtypes:

        def load(dtype: Dtype = dtype) -> Peer:
            return OurEngine(
                config.folder,
                dtype=dtype,
                lengths=workload.lengths,
                max_batch=max(config.batches),
            )

        yield _Entry(engine=OURS, version=version, dtype=dtype, load=load)


def _peer_entries(config: OfflineConfig) -> Iterator[_Entry]:
    for peer in config.peers:
        for dtype in peer.dtypes_for(config.dtypes) if peer.is_installed else ():

            def load(peer: PeerPackage = peer, dtype: Dtype = dtype) -> Peer:
                return peer.load(config.folder, dtype)

            yield _Entry(engine=peer.name, version=peer.version, dtype=dtype, load=load)


def _measure(
    entry: _Entry, config: OfflineConfig, workload: Workload, note: Note
) -> EngineResult:
    """Load one engine, time it, and free it before the next is loaded."""
    name = f"{entry.engine} {entry.dtype}"
    peer = entry.load()

    def runs(what: str, *, batch: int, max_tokens: int) -> list[Trace]:
        traces = []
        for _ in range(1 + config.repetitions):
            note(f"{name}, {what}")
            traces.append(peer.run(workload.prompts[:batch], max_tokens=max_tokens))
        return traces[1:]

    first = [first_token_s(trace) for trace in runs("first token", batch=1, max_tokens=1)]
    answer = workload.lengths.answer
    decodes = [
        Decode(
            batch=batch,
            runs=tuple(map(decode_speed, runs(f"batch {batch}", batch=batch, max_tokens=answer))),
        )
        for batch in config.batches
    ]
    del peer, runs
    gc.collect()
    return EngineResult(
        engine=entry.engine,
        version=entry.version,
        dtype=entry.dtype,
        first_token_runs_s=tuple(first),
        decodes=tuple(decodes),
    )


def _floors(
    config: OfflineConfig, workload: Workload, dtypes: set[Dtype], bandwidth: float
) -> Iterator[Floor]:
    model = read_config(config.folder)
    for dtype in sorted(dtypes):
        for batch in config.batches:
            context = workload.lengths.mean_context
            yield Floor(
                dtype=dtype,
                batch=batch,
                weight_bytes=weight_bytes(model, dtype),
                kv_bytes=kv_bytes(model, dtype, batch=batch, context=context),
                bandwidth=bandwidth,
            )
