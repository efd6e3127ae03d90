"""Steps from their decision to their measurement."""

from dataclasses import dataclass

from outrider.engine.adaptive.trial import Trial
from outrider.engine.draft_policy import StepLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInFlight:
    """What a step runs, until its result is there."""

    rung: int
    trial: Trial | None  # that the step belongs to
    load: StepLoad
    stands_for: int  # steps: itself, and those before it that were not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A complete step with decode rows, less what its prompts took."""

    rung: int
    trial: Trial | None
    load: StepLoad
    stands_for: int
    alone_s: float  # seconds that the rows alone would have taken
    emitted: float  # tokens of a row


class StepLog:
    """Owns what was decided about steps that are not complete."""

    def __init__(self) -> None:
        # Of steps being scheduled: rung, trial, and how many steps they stand for.
        self._decided: dict[int, tuple[int, Trial | None, int]] = {}
        self._in_flight: dict[int, StepInFlight] = {}

    def __len__(self) -> int:
        return len(self._in_flight)

    def decide(self, step: int, rung: int, trial: Trial | None, *, stands_for: int = 1) -> None:
        self._decided[step] = rung, trial, stands_for

    def settle(self, step: int, load: StepLoad) -> None:
        """The step runs this. An empty one has no result."""
        is_decided = step in self._decided
        rung, trial, stands_for = self._decided.pop(step, (0, None, 1))
        if not (load.num_rows if is_decided else load.num_prompt):
            return
        self._in_flight[step] = StepInFlight(
            rung=rung, trial=trial, load=load, stands_for=stands_for
        )
        if trial and load.num_rows:
            trial.num_in_flight += 1

    def complete(self, step: int) -> StepInFlight | None:
        """What the step ran. Earlier steps that are still in flight have failed."""
        for failed in [each for each in self._in_flight if each < step]:
            self._remove(failed)
        return self._remove(step) if step in self._in_flight else None

    def _remove(self, step: int) -> StepInFlight:
        was = self._in_flight.pop(step)
        if was.trial and was.load.num_rows:
            was.trial.num_in_flight -= 1
        return was
