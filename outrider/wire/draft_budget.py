"""How far a row may draft in a round."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The size of a draft tree. One node drafts nothing: plain decoding."""

    steps: int = 0  # depth of the tree
    topk: int = 1  # children per node; 1 makes a chain
    nodes: int = 1  # nodes sent to the target, node 0 included

    @property
    def most_emitted(self) -> int:
        """Tokens a round can emit: a path from node 0 to the deepest one, and the bonus."""
        return self.nodes if self.nodes <= self.steps else self.steps + 1

    def reach(self, lead: int, block: int = 0) -> int:
        """Positions past the cached ones that a round may write, in the target's KV or the draft's.

        A draft model runs `lead` positions ahead. It stores every branch of all steps but the last,
        or a block of slots, and afterwards as many tokens as the target can emit.
        """
        drafted = block or (self.steps - 1) * self.topk
        return lead + max(self.nodes, drafted if self.steps else 0)

    def within(self, other: "Budget") -> "Budget":
        """The largest budget that exceeds neither, without steps or nodes that cannot be used."""
        topk, nodes = min(self.topk, other.topk), min(self.nodes, other.nodes)
        steps = min(self.steps, other.steps, nodes - 1)
        candidates = topk + (steps - 1) * topk * topk if steps else 0
        least = Budget(steps=steps, topk=topk, nodes=min(nodes, 1 + candidates))
        return other if least == other else least  # equal budgets share an object


PLAIN = Budget()
UNBOUNDED = Budget(steps=63, topk=64, nodes=64)  # whatever the engine's own budget allows

_SHARES = (0.25, 0.5, 1.0)  # of the configured budget, besides plain decoding
_SHARED = 0.5
_LARGER = 1.5  # trees of rows that share drafts
FEWEST_SHARING = 4  # rows: fewer have too little to choose from to pay for growing whole trees


def draft_levels(most: int) -> tuple[int, ...]:
    """Drafts of a row on average: parts of the most that a row may have, ascending, then all."""
    levels = [max(1, round(most * share)) for share in (*_SHARES, 1 / _LARGER)] if most else [0]
    return tuple(sorted(set(levels)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """How much the rows of a step draft: each at most a tree, and all of them so many drafts."""

    tree: Budget
    drafts: int  # of a row on average

    @property
    def nodes(self) -> int:
        """Query tokens of a row on average."""
        return 1 + self.drafts

    @property
    def is_shared(self) -> bool:
        """Whether rows grow larger trees than are verified: the best drafts of all rows are."""
        return self.nodes < self.tree.nodes

    @property
    def most_emitted(self) -> int:
        """Tokens that a round can emit on average."""
        return 1 + min(self.tree.steps, self.drafts)


def whole_rung(tree: Budget) -> Rung:
    """Every row may use all of its tree."""
    return Rung(tree=tree, drafts=tree.nodes - 1)


def _shared_rung(part: Budget, budget: Budget) -> Rung:
    """As many drafts as this part of a budget has, of larger trees."""
    larger = Budget(
        steps=math.ceil(_LARGER * part.steps),
        topk=part.topk,
        nodes=1 + math.ceil(_LARGER * (part.nodes - 1)),
    )
    return Rung(tree=larger.within(budget), drafts=part.nodes - 1)


PLAIN_RUNG = whole_rung(PLAIN)


def ladder_of(budget: Budget, *, is_shared: bool) -> tuple[Rung, ...]:
    """What adaptive drafting chooses from: plain decoding, parts of the budget, all of it.

    Where rows can share drafts, half of the drafts may also go to the best nodes of trees that are
    half as large again, and not to every row alike. That takes more draft steps, so it pays where
    texts differ or verifying is dear. Growing still larger trees costs more draft steps than it
    gains, and a quarter of the drafts is too little to pay for any.
    """
    rungs = {PLAIN_RUNG: None}
    for share in _SHARES:
        part = Budget(
            steps=max(1, round(budget.steps * share)),
            topk=budget.topk,
            nodes=max(2, 1 + round((budget.nodes - 1) * share)),
        ).within(budget)
        rungs[whole_rung(part)] = None
        if is_shared and share == _SHARED:
            rungs[_shared_rung(part, budget)] = None
    return tuple(rungs)
