"""Where the draft KV of a round lies: after the row's history, step by step."""

from dataclasses import dataclass

from outrider.config.draft_config import MAX_NODES
from outrider.wire.draft_budget import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSlots:
    """Branch b of step i is node (i - 1) * topk + b of the scratch region that follows position L.

    The region lasts one round: the catch-up rewrites it from the target's hidden states.
    """

    tree: Budget

    def __post_init__(self) -> None:
        assert self.num_nodes <= MAX_NODES, "checked when the budget was configured"

    @property
    def num_nodes(self) -> int:
        return max(self.tree.steps - 1, 0) * self.tree.topk

    def first_node(self, step: int) -> int:
        """Index of the scratch node of the first branch at a draft step; steps count from 1."""
        return (step - 1) * self.tree.topk

    def num_branches(self, step: int) -> int:
        """Branches that a step runs. The tokens of the last step are drafted but never run."""
        return self.tree.topk if step < self.tree.steps else 0
