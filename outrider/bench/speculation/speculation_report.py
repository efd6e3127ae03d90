"""Records of `outrider bench speculation`, and the rates computed from them."""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.bench.accepted_rates import accepted_rates
from outrider.bench.machine import Machine
from outrider.config.engine_config import Dtype

PLAIN = "plain"
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of decoding without the step of the prompt, and the drafter's part of them."""

    total_s: float
    draft_s: float
    catch_up_s: float

    @property
    def verify_s(self) -> float:
        """The target over the drafts, sampling, and the engine's own work."""
        return self.total_s - self.draft_s - self.catch_up_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRun:
    """One prompt answered with one drafter, alone."""

    kind: str
    drafter: str
    tokens: tuple[int, ...]
    rounds: int
    accepted_per_position: tuple[int, ...]
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """All runs of one drafter on one kind of prompts, or on all."""

    kind: str
    drafter: str
    runs: tuple[SpeculationRun, ...]

    @property
    def rounds(self) -> int:
        return sum(run.rounds for run in self.runs)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second without the first token, which the step of the prompt emits."""
        num_tokens = sum(len(run.tokens) - 1 for run in self.runs)
        return num_tokens / max(self.cost.total_s, 1e-9)

    @property
    def cost(self) -> Cost:
        return Cost(
            total_s=sum(run.cost.total_s for run in self.runs),
            draft_s=sum(run.cost.draft_s for run in self.runs),
            catch_up_s=sum(run.cost.catch_up_s for run in self.runs),
        )

    @property
    def accepted_rates(self) -> tuple[float, ...]:
        """Share of the rounds that accepted the first draft, the second, ..."""
        return accepted_rates((run.accepted_per_position for run in self.runs), rounds=self.rounds)

    @property
    def accept_length(self) -> float:
        """Mean tokens per round."""
        return 1.0 + sum(self.accepted_rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationSetting:
    """The model, the machine and the work."""

    model: str
    machine: Machine
    dtype: Dtype
    temperature: float
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationReport:
    """The results of one run of the benchmark."""

    setting: SpeculationSetting
    runs: tuple[SpeculationRun, ...]

    @property
    def drafters(self) -> tuple[str, ...]:
        """Drafters in the order in which they ran: plain decoding first."""
        return tuple(dict.fromkeys(run.drafter for run in self.runs))

    @property
    def kinds(self) -> tuple[str, ...]:
        return (*dict.fromkeys(run.kind for run in self.runs), ALL)

    def share(self, kind: str, drafter: str) -> TimeShare:
        wanted = (run for run in self.runs if run.drafter == drafter)
        runs = tuple(run for run in wanted if kind in (run.kind, ALL))
        return TimeShare(kind=kind, drafter=drafter, runs=runs)

    def speedup(self, share: TimeShare) -> float:
        """Speed relative to plain decoding of the same prompts in the same run."""
        return share.tokens_per_s / max(self.share(share.kind, PLAIN).tokens_per_s, 1e-9)

    @property
    def num_different(self) -> int:
        """Answers that are not those of plain decoding; anything but 0 is a bug or a tie."""
        answers = {name: _answers(self.share(ALL, name).runs) for name in self.drafters}
        right = answers[PLAIN]
        return sum(
            answer != plain
            for given in answers.values()
            for answer, plain in zip(given, right, strict=True)
        )


def _answers(runs: Sequence[SpeculationRun]) -> list[tuple[int, ...]]:
    return [run.tokens for run in runs]
