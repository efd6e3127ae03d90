"""An engine whose drafting is set from outside, for benchmarks."""

from outrider.engine.draft_policy import DraftPolicy, WholeBudget
from outrider.engine.engine import Engine
from outrider.wire.draft_budget import Rung


class PolicyEngine(Engine):
    """An engine that drafts as it is told."""

    def use_policy(self, policy: DraftPolicy) -> None:
        """Draft as this policy says, from the next step on."""
        self._scheduler._policy = policy


class RungsInTurn(WholeBudget):
    """One rung after another, step by step; of one rung, the same in every step."""

    def __init__(self, *rungs: Rung) -> None:
        self._rungs = rungs

    @property
    def most_emitted(self) -> int:
        """Tokens that a row emits at most while every rung has a step."""
        return sum(rung.tree.most_emitted for rung in self._rungs)

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Rung:
        del num_rows, num_prompt
        return self._rungs[step % len(self._rungs)]
