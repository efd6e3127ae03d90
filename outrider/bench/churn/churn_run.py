"""Records of one load: what every step was, and what the requests got."""

from dataclasses import dataclass
from typing import Literal

StepKind = Literal["decode", "mixed", "prompts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnStep:
    """A step of the load."""

    decode_tokens: int  # node 0 and drafts of all rows
    prompt_tokens: int
    emitted: int
    is_eager: bool
    busy_s: float  # on the device
    submit_s: float  # of the host, until the step is launched

    @property
    def kind(self) -> StepKind:
        if not self.prompt_tokens:
            return "decode"
        return "mixed" if self.decode_tokens else "prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnTokens:
    """Sums over all requests of a load."""

    emitted: int
    rounds: int  # of verification, drafted or not
    drafted: int
    accepted: int

    @property
    def per_round(self) -> float:
        """Tokens that a round emits: accepted drafts and the bonus token."""
        return 1.0 + self.accepted / self.rounds if self.rounds else 1.0

    @property
    def accepted_rate(self) -> float:
        """Share of the drafts that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTime:
    """How long a load took, and how much of that the device ran steps."""

    seconds: float
    occupancy: float  # share of the time in which the device runs a step
    start_s: float = 0.0  # from weights in memory to an engine that is ready


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnRun:
    """One load of our engine, measured after a first run of the same load."""

    way: str
    rows: int
    time: LoadTime
    tokens: ChurnTokens
    steps: tuple[ChurnStep, ...]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens.emitted / self.time.seconds

    @property
    def eager_rate(self) -> float:
        """Share of the steps without a captured graph."""
        return sum(step.is_eager for step in self.steps) / len(self.steps)

    def by_kind(self) -> dict[StepKind, list[ChurnStep]]:
        """The steps of each kind that there were."""
        kinds: dict[StepKind, list[ChurnStep]] = {}
        for step in self.steps:
            kinds.setdefault(step.kind, []).append(step)
        return kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """The same load on another engine; or why there is no number."""

    engine: str
    version: str
    way: str
    rows: int
    tokens_per_s: float  # 0 if it failed
    error: str = ""
