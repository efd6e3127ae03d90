"""Rounds of a drafter of blocks in the engine, compared with a recomputation."""

from dataclasses import dataclass
from typing import Any

import torch

from outrider.engine.draft_policy import WholeBudget
from outrider.runtime.draft_kinds import BlockDraft
from outrider.spec.block_drafter import BlockDrafter
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling
from support.block_reference import ExpectedDrafts, wrong_tree
from support.engines import engine_of, make_submission, run_all
from support.forced_rounds import ForcedRounds
from support.tiny_vocabulary import VOCAB

PROMPT = [(11 * i + 5) % VOCAB for i in range(21)]
GREEDY = RowSampling(seed=0, temperature=0.0)
CHAIN, TREE = 1, 3  # children of a node


class Spy(ForcedRounds):
    """Notes every proposal of the only row as well, with the hidden states it was made from."""

    def __init__(self, monkeypatch, engine, seed):
        super().__init__(monkeypatch, engine, seed)
        self.proposals, self.states = [], []
        propose, run_block = BlockDrafter.propose, BlockDrafter._run_block

        def noted(drafter, plan, table):
            self.states.append(None)
            tree = propose(drafter, plan, table)
            if plan.shape.rows:
                self.proposals.append((tree, self.states[-1]))
            return tree

        def noted_block(drafter, plan, anchors, table):
            states = run_block(drafter, plan, anchors, table)
            self.states[-1] = states[0]
            return states

        monkeypatch.setattr(BlockDrafter, "propose", noted)
        monkeypatch.setattr(BlockDrafter, "_run_block", noted_block)


@dataclass(frozen=True, kw_only=True)
class BlockRounds:
    """A drafter for a target, and its reference."""

    target: Any
    head: Any
    oracle: Any  # a BlockReference
    steps: int

    def mistakes(
        self,
        monkeypatch,
        shape,
        *,
        seed=0,
        is_hit=False,
        topk=CHAIN,
        nodes=10,  # of a tree
        policy=None,
        prompt=PROMPT,
        sampling=GREEDY,
        make_engine=engine_of,
    ):
        """Rounds with other states than the reference's, another chain or another tree."""
        steps, oracle = self.steps, self.oracle
        budget = Budget(steps=steps, topk=topk, nodes=1 + steps if topk == CHAIN else nodes)
        engine = make_engine(self.target, shape, BlockDraft(model=self.head, budget=budget))
        if is_hit:
            run_all(engine, [make_submission("before", [*prompt, 1, 2, 3], GREEDY, max_tokens=2)])
        engine._scheduler._policy = policy or WholeBudget()
        spy = Spy(monkeypatch, engine, seed)
        outputs = run_all(engine, [make_submission("r", prompt, sampling, max_tokens=16)])["r"]
        assert not is_hit or outputs.last.progress.cached
        text, rest, wrong = [*prompt, outputs.tokens[0]], outputs.tokens[1:], []
        with torch.no_grad():
            for (tree, states), accepted in zip(spy.proposals, spy.accepted, strict=True):
                if not rest:
                    break  # with overlap a round may run after the answer has ended
                if tree.tokens.shape[1] > 1:
                    expected = ExpectedDrafts(oracle, text, sampling)
                    wrong += _mistakes(tree, states, expected, budget)
                text, rest = text + rest[: accepted + 1], rest[accepted + 1 :]
        widths = [tree.tokens.shape[1] for tree, _ in spy.proposals]
        assert len([each for each in widths if each > 1]) > 2
        assert policy is None or 1 in widths
        return wrong


def _mistakes(tree, states, expected, budget) -> list[str]:
    """What a proposal has wrong."""
    found, where = [], f"after {len(expected.text)} tokens: "
    tokens, parents = tree.tokens[0].tolist(), tree.parents[0].tolist()
    if (states - expected.states).abs().max() > 1e-4:
        found.append(where + "other states")
    if budget.topk == CHAIN:
        right = expected.chain(budget.steps)
        if tokens[1:] != right:
            found.append(f"{where}{tokens[1:]} instead of {right}")
    elif fault := wrong_tree(tokens, parents, expected.scores(budget)):
        found.append(where + fault)
    return found
