"""How far a request drafts next, from how its last drafts fared.

For drafters whose drafts cost nothing to make: only checking them costs, and the first few rows of
a step are free, because weights are read once however many rows there are. So a request never
drafts less than that, and further only while its drafts are kept.
"""

from outrider.wire.draft_budget import PLAIN, Budget

LEAST_STEPS = 3  # with node 0 four rows, which cost a CPU and a GPU no more than one


class DraftPace:
    """Owns one request's present draft length."""

    def __init__(self) -> None:
        self._steps = LEAST_STEPS
        self._given = PLAIN  # at last

    def note_round(self, *, drafted: int, num_accepted: int) -> None:
        """All kept: reach twice as far. Less than half kept, or nothing found: half as far."""
        if drafted and num_accepted == drafted:
            self._steps = 2 * self._steps + 1
        elif 2 * num_accepted <= drafted:
            self._steps = max(LEAST_STEPS, self._steps // 2)

    def within(self, budget: Budget) -> Budget:
        """The part of a budget to use now."""
        self._steps = min(self._steps, max(budget.steps, LEAST_STEPS))
        steps = min(self._steps, budget.steps)
        nodes, given = min(budget.nodes, 1 + steps), self._given
        if (given.steps, given.topk, given.nodes) != (steps, budget.topk, nodes):
            self._given = Budget(steps=steps, topk=budget.topk, nodes=nodes)
        return self._given
