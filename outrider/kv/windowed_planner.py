"""Plans attention twice for models whose layers with a sliding window have pages of their own.

The kernels are those of the backend inside. They get another page table. What its entries behind
the window say does not matter: no query sees those keys.
"""

from dataclasses import dataclass, replace

from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionBackend, AttentionScope, Capabilities
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedPlan(AttentionPlan):
    """The plans of the backend inside, one for each kind of layer."""

    whole: AttentionPlan
    windowed: AttentionPlan


class WindowedPlanner:
    """Fills one plan for layers that see the whole text, if there are any, and one for others."""

    def __init__(self, backend: AttentionBackend, *, has_whole: bool) -> None:
        self.backend = backend
        self._has_whole = has_whole  # whether any layer sees the whole text

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    def reserve(self, arena: Arena, largest: StepShape) -> None:
        if self._has_whole:
            self.backend.reserve(arena, largest)
        self.backend.reserve(arena.part("window"), largest)

    def bind(self, arena: Arena, shape: StepShape) -> WindowedPlan:
        windowed = self.backend.bind(arena.part("window"), shape)
        whole = self.backend.bind(arena, shape) if self._has_whole else windowed
        return WindowedPlan(whole=whole, windowed=windowed)

    def fill(self, plan: AttentionPlan, scope: AttentionScope) -> None:
        assert isinstance(plan, WindowedPlan)
        if self._has_whole:
            self.backend.fill(plan.whole, scope)
        self.backend.fill(plan.windowed, replace(scope, page_table=scope.window_table))
