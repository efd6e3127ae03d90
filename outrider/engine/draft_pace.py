"""How many tokens a request drafts next, from the acceptance of its last drafts.

For drafters that cost nothing, such as n-grams: only verification costs, and the first few query
tokens of a step are free, because weights are read once for all of them. So a request never drafts
less than that, and more only while its drafts are accepted.
"""

from outrider.wire.draft_budget import PLAIN, Budget

LEAST_STEPS = 3  # with node 0 four query tokens: a step costs no more than with one


class DraftPace:
    """Owns the current draft length of one request."""

    def __init__(self) -> None:
        self._steps = LEAST_STEPS
        self._longest = LEAST_STEPS  # that a budget has allowed
        self._last_budget = PLAIN  # what `within` returned last

    def note_round(self, *, drafted: int, num_accepted: int, most: int) -> None:
        """All accepted: draft twice as far. At most half accepted, or none drafted: half as far.

        `most` drafts were allowed. Where the batch allowed few or none, they say little.
        """
        if most and drafted and num_accepted == drafted:
            self._steps = 2 * self._steps + 1 if most >= self._steps else self._steps
        elif most and 2 * num_accepted <= drafted:
            self._steps = max(LEAST_STEPS, self._steps // 2)

    def within(self, budget: Budget) -> Budget:
        """The part of a budget to use now."""
        self._longest = max(self._longest, budget.steps)
        self._steps = min(self._steps, self._longest)
        steps = min(self._steps, budget.steps)
        nodes, last = min(budget.nodes, 1 + steps), self._last_budget
        if (last.steps, last.topk, last.nodes) != (steps, budget.topk, nodes):
            self._last_budget = Budget(steps=steps, topk=budget.topk, nodes=nodes)
        return self._last_budget
