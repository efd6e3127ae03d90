"""What a drafter of blocks should propose: chains and whole trees, by enumeration."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch

from outrider.ops.sampling.gumbel_noise import gumbel
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling

Path = tuple[int, ...]
STEP_COST = 1e-3  # of a level, so that of equally likely nodes the shallower one is drafted


class BlockReference(ABC):
    """Recomputes a block over the whole text, without cache, pages or engine code."""

    @abstractmethod
    def run_block(self, tokens: list[int]) -> torch.Tensor:  # [slots, width]
        """The states of all slots of the block that begins with the last token."""

    @abstractmethod
    def marginal(self, states: torch.Tensor, depth: int) -> torch.Tensor:  # [draft_vocab]
        """Logits of the draft at a depth, which counts from 0, by its slot alone."""

    def bias(
        self,
        states: torch.Tensor,
        depth: int,
        before: int,
    ) -> torch.Tensor:  # [draft_vocab]
        """What the token before adds."""
        return torch.zeros(())

    def log_chance(
        self,
        states: torch.Tensor,
        depth: int,
        before: int,
    ) -> float | None:
        """How far the model says that the target will agree; None: it does not say."""
        return None

    def target_ids(self, vocab: int) -> list[int]:
        """The target's id of each token of the draft vocabulary."""
        return list(range(vocab))


@dataclass(frozen=True)
class ExpectedDrafts:
    """What should be drafted after a text whose states are all the target's."""

    reference: BlockReference
    text: list[int]
    sampling: RowSampling

    @cached_property
    def states(self) -> torch.Tensor:  # [slots, width]
        return self.reference.run_block(self.text)

    def chain(self, steps: int) -> list[int]:
        """The best token of each slot after that of the slot before."""
        drafts, before = [], self.text[-1]
        for depth in range(steps):
            logits = self.reference.marginal(self.states, depth)
            logits = logits + self.reference.bias(self.states, depth, before)
            before = self._ids(logits)[int(self._noisy(logits, depth).argmax())]
            drafts.append(before)
        return drafts

    def scores(self, budget: Budget) -> dict[Path, float]:
        """The score of every path of `steps` tokens at most, of which each is among the `topk` best
        after the one before.
        """
        found: dict[Path, float] = {}
        frontier: dict[Path, float] = {(): 0.0}
        for depth in range(budget.steps):
            known = {path[-1] if path else self.text[-1] for path in frontier}
            below = {before: self._children(depth, before, budget.topk) for before in known}
            frontier = {
                (*path, token): score + value - STEP_COST
                for path, score in frontier.items()
                for token, value in below[path[-1] if path else self.text[-1]]
            }
            found |= frontier
        return found

    def _children(self, depth: int, before: int, topk: int) -> list[tuple[int, float]]:
        """The best tokens after a token, with what they add to the score of its node."""
        logits = self.reference.marginal(self.states, depth)
        logits = logits + self.reference.bias(self.states, depth, before)
        ids, logprobs = self._ids(logits), self._noisy(logits, depth).log_softmax(0)
        best = logprobs.topk(topk)
        chance = self.reference.log_chance(self.states, depth, before) or 0.0
        found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(ids[i], value + chance) for i, value in found]

    def _ids(self, logits: torch.Tensor) -> list[int]:
        return self.reference.target_ids(len(logits))

    def _noisy(self, logits: torch.Tensor, depth: int) -> torch.Tensor:  # [draft_vocab] both
        """As the target will sample at the position of the draft."""
        if not self.sampling.temperature:
            return logits
        ids = torch.tensor(self._ids(logits))
        seed, position = torch.tensor([self.sampling.seed]), torch.tensor([len(self.text) + depth])
        noise = gumbel(seed, position, int(ids.max()) + 1)[0, ids]
        return logits / self.sampling.temperature + noise


def wrong_tree(tokens: list[int], parents: list[int], scores: dict[Path, float]) -> str:
    """What is wrong with a tree that should have the best of these paths; "" if nothing is.

    Paths whose scores are equal up to rounding may stand for each other.
    """
    paths: list[Path] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        if token >= 0:
            paths.append((*paths[parent], token))
    drafted = paths[1:]
    best = sorted(scores, key=lambda path: -scores[path])[: len(tokens) - 1]
    if len(set(drafted)) != len(best) or any(path not in scores for path in drafted):
        return f"{drafted} instead of {best}"
    lowest = scores[best[-1]]
    missed = [path for path in drafted if scores[path] < lowest - 1e-4]
    return f"{missed} are not among the best nodes {best}" if missed else ""
