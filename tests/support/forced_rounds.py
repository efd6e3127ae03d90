"""Rounds of one row whose acceptance is chosen at random, whatever the target would have chosen."""

import random

from outrider.engine.draft_policy import WholeBudget
from outrider.ops.tree.verify import verify
from outrider.wire.draft_budget import PLAIN, UNBOUNDED, whole_rung


class ForcedRounds:
    """Decides how many drafts of the first row are accepted, and notes it."""

    def __init__(self, monkeypatch, engine, seed):
        self.accepted = []
        self._rng = random.Random(seed)
        monkeypatch.setattr(engine._runner._program, "_verifier", self._verify)

    def _verify(self, tree, choice, most_emitted):
        if not len(tree.tokens):
            return verify(tree, choice, most_emitted)
        choice = choice.clone()
        tokens, parents = tree.tokens[0].tolist(), tree.parents[0].tolist()
        node = self._rng.choice([n for n, token in enumerate(tokens) if token >= 0])
        while node > 0:  # the target agrees with everything on the way to this node
            choice[0, parents[node]] = tokens[node]
            node = parents[node]
        verify_result = verify(tree, choice, most_emitted)
        self.accepted.append(int(verify_result.num_accepted[0]))
        return verify_result


class SomeStepsDraft(WholeBudget):
    """Steps draft or do not, at random: as adaptive drafting may decide."""

    def __init__(self, seed):
        self._rng = random.Random(seed)

    def choose(self, step, *, num_rows, num_prompt):
        return whole_rung(self._rng.choice([PLAIN, UNBOUNDED]))
