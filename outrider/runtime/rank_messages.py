"""What rank 0 sends to the other ranks of its group, and what they answer."""

from dataclasses import dataclass
from pathlib import Path

from outrider.config.engine_config import EngineConfig
from outrider.runtime.runner import AgreedStep
from outrider.wire.runner_facts import RankFacts
from outrider.wire.scheduled_batch import ScheduledBatch
from outrider.wire.step_result import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingPoint:
    """Where the ranks of a group find each other."""

    host: str  # where rank 0 is
    port: int  # of its store
    own_host: str  # the address of this machine that the other ranks reach


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """What a rank must know before it can join its group."""

    folder: Path
    config: EngineConfig
    rank: int
    has_own_gpu: bool  # no rank shares it, so that NCCL can be used
    meeting: MeetingPoint


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run a step. Ranks with requests of their own answer with its result; others have rank 0's."""

    batch: ScheduledBatch
    agreed: AgreedStep | None = None  # for ranks with requests of their own


@dataclass(frozen=True, slots=True)
class RankReady:
    """The rank has loaded its share of the model."""

    facts: RankFacts


@dataclass(frozen=True, slots=True)
class RankFailed:
    """The rank ends, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class RankAlive:
    """Sent every half second, whatever the rank is doing."""


FromRank = RankReady | RankFailed | RankAlive | StepResult
