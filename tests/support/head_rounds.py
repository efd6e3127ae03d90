"""Rounds of a random head in the engine, whose drafts are compared with a recomputation."""

import torch

from outrider.engine.draft_policy import WholeBudget
from outrider.models.eagle.head_loader import load_head
from outrider.runtime.draft_kinds import ModelDraft
from outrider.spec.model_drafter import ModelDrafter
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling
from support.engines import engine_of, make_submission, run_all
from support.forced_rounds import ForcedRounds
from support.head_oracle import Oracle
from support.heads import Variant, head_tensors, write_head
from support.tiny_vocabulary import VOCAB

STEPS = 3
PROMPT = [(11 * i + 5) % VOCAB for i in range(21)]
CHAIN = Budget(steps=STEPS, topk=1, nodes=STEPS + 1)
TREE = Budget(steps=STEPS, topk=3, nodes=12)
GREEDY = RowSampling(seed=0, temperature=0.0)


class Spy(ForcedRounds):
    """Notes every proposal of the first row as well."""

    def __init__(self, monkeypatch, engine, seed):
        super().__init__(monkeypatch, engine, seed)
        self.proposals = []
        propose = ModelDrafter.propose

        def noted(drafter, plan, table):
            tree = propose(drafter, plan, table)
            if plan.shape.rows:
                self.proposals.append(tree.tokens[0, 1:].tolist())
            return tree

        monkeypatch.setattr(ModelDrafter, "propose", noted)


def mistakes(
    models,
    monkeypatch,
    folder,
    variant,
    shape,
    *,
    seed=0,
    is_prefix_hit=False,
    budget=CHAIN,
    policy=None,
    oracle_of=Oracle,
    make_engine=engine_of,
):
    """Rounds whose proposal is not the oracle's: a whole chain, or a tree's best first node."""
    write_head(folder, models.target.config, **_flags(variant))
    head = load_head(
        folder,
        target=models.target,
        target_folder=models.folder,
        dtype="float32",
        device=torch.device("cpu"),
    )
    weights = head_tensors(models.target.config, variant, seed=0)
    oracle = oracle_of(models.theirs, variant.complete(models.target.config), weights)
    engine = make_engine(models.target, shape, ModelDraft(model=head, budget=budget))
    if is_prefix_hit:
        run_all(engine, [make_submission("before", [*PROMPT, 1, 2, 3], GREEDY, max_tokens=2)])
    engine._scheduler._policy = policy or WholeBudget()
    spy = Spy(monkeypatch, engine, seed)
    outputs = run_all(engine, [make_submission("r", PROMPT, GREEDY, max_tokens=16)])["r"]
    if is_prefix_hit:
        assert outputs.last.progress.cached
    text, rest, wrong = [*PROMPT, outputs.tokens[0]], outputs.tokens[1:], []
    with torch.no_grad():
        for proposal, kept in zip(spy.proposals, spy.accepted, strict=True):
            if not rest:
                break  # with overlap a round may run after the answer has ended
            right = oracle.chain(text, STEPS if budget == CHAIN else 1, head.target_ids)
            if proposal and proposal[: len(right)] != right:
                wrong.append(f"after {len(text)} tokens: {proposal} instead of {right}")
            text, rest = text + rest[: kept + 1], rest[kept + 1 :]
    assert len([each for each in spy.proposals if each]) > 3
    assert policy is None or [] in spy.proposals
    assert max(spy.accepted) > 0
    return wrong


def _flags(variant):
    default = Variant()
    fields = {name: getattr(variant, name) for name in Variant.__dataclass_fields__}
    return {k: v for k, v in fields.items() if v != getattr(default, k) or k == "algorithm"}
