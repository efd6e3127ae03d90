"""Records of `outrider bench offline`, and the ratios between them."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from outrider.bench.machine import Machine
from outrider.bench.offline.decode_floor import DecodeFloor
from outrider.bench.offline.run_trace import DecodeSpeed
from outrider.bench.offline.workload import Workload
from outrider.config.engine_config import Dtype

OURS = "outrider"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """All runs of one engine at one batch size; the median run counts."""

    batch: int
    runs: tuple[DecodeSpeed, ...]

    @property
    def tokens_per_s(self) -> float:
        return statistics.median(run.tokens_per_s for run in self.runs)

    @property
    def step_s(self) -> float:
        return statistics.median(run.step_s for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResult:
    """One engine with weights of one type."""

    engine: str
    version: str
    dtype: Dtype
    first_token_runs_s: tuple[float, ...]
    decodes: tuple[Decode, ...]

    @property
    def first_token_s(self) -> float:
        return statistics.median(self.first_token_runs_s)

    def at(self, batch: int) -> Decode:
        return next(decode for decode in self.decodes if decode.batch == batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineSetting:
    """The model, the machine and the work."""

    model: str
    machine: Machine
    workload: Workload
    bandwidth: float  # bytes per second


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineReport:
    """The results of one run."""

    setting: OfflineSetting
    floors: tuple[DecodeFloor, ...]
    results: tuple[EngineResult, ...]
    missing: Mapping[str, str]  # peers that were not measured, and why

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(decode.batch for decode in self.results[0].decodes)

    @property
    def peers(self) -> tuple[str, ...]:
        """Names of the peers that were measured, each once."""
        return tuple(dict.fromkeys(r.engine for r in self.results if r.engine != OURS))

    def floor(self, dtype: Dtype, batch: int) -> DecodeFloor:
        return next(f for f in self.floors if (f.dtype, f.batch) == (dtype, batch))

    def of_floor(self, result: EngineResult, batch: int) -> float:
        """Share of the floor's speed that was reached; 1 is the floor."""
        return result.at(batch).tokens_per_s / self.floor(result.dtype, batch).tokens_per_s

    @property
    def is_floor_beaten(self) -> bool:
        """Whether an engine was faster than the floor: then the bandwidth was measured too low."""
        return any(
            self.of_floor(each, batch) > 1 for each in self.results for batch in self.batches
        )

    def against(self, peer: str, result: EngineResult, batch: int) -> float:
        """Speed over a peer's: with the same type of weights, else with the peer's first type."""
        theirs = [other for other in self.results if other.engine == peer]
        alike = [other for other in theirs if other.dtype == result.dtype]
        return result.at(batch).tokens_per_s / (alike or theirs)[0].at(batch).tokens_per_s
