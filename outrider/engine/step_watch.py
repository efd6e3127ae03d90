"""Reports which requests the steps in flight run, so that a lost step can be explained."""

from collections.abc import Callable, Iterable

from outrider.engine.request import Placement
from outrider.engine.step_decision import ExpectedStep

OnSteps = Callable[[tuple[str, ...]], None]  # called with the requests of all steps in flight


class StepWatch:
    """Calls back when the steps in flight run other requests than before."""

    def __init__(self) -> None:
        self.on_steps: OnSteps | None = None  # unless the steps are watched
        self._noted: list[tuple[Placement, ...]] = []  # what it was called with

    def note(self, in_flight: Iterable[ExpectedStep], submitted: ExpectedStep) -> None:
        """Most steps run the rows of the step before, so only changes are reported."""
        if self.on_steps is None:
            return
        steps = [each.placements for each in (*in_flight, submitted)]
        if steps != self._noted:
            self._noted = steps
            ids = [placement.request.request_id for step in steps for placement in step]
            self.on_steps(tuple(dict.fromkeys(ids)))
