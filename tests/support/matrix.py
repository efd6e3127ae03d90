"""The equality matrix: ways to run the engine, and sampling parameters for each of them."""

import random
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from outrider.engine.engine import Engine
from outrider.models.block_model import AnyBlockModel, BlockModel
from outrider.models.decoder import Decoder
from outrider.models.draft_model import AnyDraftModel
from outrider.models.mtp.module_chain import ModuleChain
from outrider.models.standalone_draft import StandaloneDraft
from outrider.runtime.draft_kinds import (
    BlockDraft,
    DraftKind,
    MergedDraft,
    ModelDraft,
    ModelKind,
    ModulesDraft,
    NgramDraft,
    NoDraft,
    SuffixDraft,
    merged_budget,
)
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import (
    Ban,
    Filters,
    LogprobsWanted,
    Penalties,
    Restrictions,
    RowSampling,
    ThinkingBudget,
)
from support.engines import UNLIMITED, Shape, engine_of, make_submission, run_all
from support.reference import Answer, decode

ASKED = LogprobsWanted(chosen=True, top=2)
SAMPLINGS = {
    "greedy": RowSampling(seed=0, temperature=0.0, logprobs=ASKED),
    "sampled": RowSampling(seed=11, temperature=0.8, logprobs=ASKED),
    "warped": RowSampling(
        seed=2**40 + 5,
        temperature=1.3,
        filters=Filters(top_k=20, top_p=0.9, min_p=0.02),
        penalties=Penalties(repetition=1.2, presence=0.3, frequency=0.2),
        bias=((5, 2.0), (9, -3.0)),
        ban=Ban(before=14, tokens=(2, 3, 5)),
        logprobs=ASKED,
    ),
    "restricted": RowSampling(
        seed=77,
        temperature=1.0,
        restrictions=Restrictions(
            allowed=tuple(range(3, 60)),
            bad_words=((5, 6), (7, 7), (6, 5, 7), (9,), (13, 21)),
            thinking=ThinkingBudget(opens=70, closes=11, is_open=True, until=12),
        ),
        logprobs=ASKED,
    ),
}
MIXED = "mixed"  # every prompt of the batch with other sampling parameters


def sampling_of(name: str, index: int) -> RowSampling:
    """The sampling of one prompt; every row draws noise of its own."""
    base = SAMPLINGS[list(SAMPLINGS)[index % len(SAMPLINGS)] if name == MIXED else name]
    return replace(
        base, seed=base.seed + 1000 * index, logprobs=LogprobsWanted(chosen=True, top=index)
    )


_shared = [7, 3, 44, 19, 60, 2, 31, 8, 8, 25]  # more than two pages of four
PROMPTS = [[*_shared, 13, 21, 40], [*_shared, 13, 5], [50], [4, 66, 12, 9, 33]]
MAX_TOKENS = 9

# A twin is kept completely, a stranger almost never, a relative now and then.
TARGETS = ["llama", "deepseek-v3"]  # keys and values, latents
BLOCKS = ["dflash", "mixed", "dflash2", "dspark", "peagle", "pard", "medusa"]
DRAFTERS = ["none", "twin", "relative", "stranger", "relative+suffix"]
DRAFTERS += ["eagle", "eagle3", "eagle3-mla", *BLOCKS, "mtp"]
# Texts: of the prompts, and of answers where there is a hit.
DRAFTERS += [f"{name}+suffix" for name in (*BLOCKS, "mtp")]
LOOKUPS = {"ngram": NgramDraft, "suffix": SuffixDraft}  # drafters without a model
CHAINS_ONLY = ["modules", "modules+suffix"]  # one module per depth
TREES = {
    "one-step": Budget(steps=1, topk=1, nodes=2),
    "chain": Budget(steps=3, topk=1, nodes=4),
    "tree": Budget(steps=3, topk=3, nodes=8),
    "wide": Budget(steps=2, topk=5, nodes=20),
}


@dataclass(frozen=True)
class Models:
    """The target as transformers runs it and as we load it, and models to draft for it."""

    theirs: Any
    target: Decoder
    relative: Decoder
    stranger: Decoder
    folder: Path  # of the target
    heads: dict[str, AnyDraftModel | AnyBlockModel]  # random ones, which are kept almost never
    modules: ModuleChain  # likewise, one per depth

    def draft(self, name: str, budget: Budget) -> DraftKind:
        if name == "none":
            return NoDraft()
        if name in LOOKUPS:
            return LOOKUPS[name](budget=budget, min_match=1, max_match=4)
        model, _, lookup = name.partition("+")
        if lookup:
            own = LOOKUPS[lookup](budget=merged_budget(budget), min_match=1, max_match=4)
            return MergedDraft(model=self._model(model, budget), lookup=own)
        return self._model(name, budget)

    def _model(self, name: str, budget: Budget) -> ModelKind:
        if name == "modules":
            return ModulesDraft(modules=self.modules, budget=budget)
        if name in self.heads:
            head = self.heads[name]
            if isinstance(head, BlockModel):
                return BlockDraft(model=head, budget=budget)
            return ModelDraft(model=head, budget=budget)
        whole = {"twin": self.target, "relative": self.relative, "stranger": self.stranger}[name]
        draft = StandaloneDraft(whole, target_vocab=self.target.config.vocab_size)
        return ModelDraft(model=draft, budget=budget)


@dataclass(frozen=True)
class Case:
    shape: Shape
    is_prefix_hit: bool  # the same prompts have been answered before, so their pages are cached
    sampling: str
    drafter: str = "none"
    tree: str = "chain"
    target: str = "llama"
    budgets: tuple[Budget, ...] = ()  # of each prompt; none: all have that of the tree

    def __str__(self) -> str:
        s = self.shape
        words = [f"page{s.page_size}", f"pad{s.pad}", s.executor, f"depth{s.depth}"]
        words += [f"chunk{s.step_tokens}", "hit" if self.is_prefix_hit else "cold", self.sampling]
        words += [self.target] if self.target != "llama" else []
        words += ["nodes", *[str(budget.nodes) for budget in self.budgets]] if self.budgets else []
        return "-".join([*words, self.drafter, *([self.tree] if self.drafter != "none" else [])])


DRAFTS = [
    ("none", "chain"),
    *product(DRAFTERS[1:], TREES),
    *product(CHAINS_ONLY, ["one-step", "chain"]),
]


def all_cases() -> list[Case]:
    return [
        Case(
            # Even the largest trees of all rows must leave room for a prompt.
            Shape(page_size=page, pad=pad, executor=executor, depth=depth, step_tokens=chunk),
            is_prefix_hit=hit,
            sampling=sampling,
            drafter=drafter,
            tree=tree,
            target=target,
        )
        for page, pad, executor, depth, extra, hit, sampling, (drafter, tree), target in product(
            [1, 4, 16, 64],
            [1, 4],
            ["eager", "tape"],
            [0, 1],
            [1, 7, 60],
            [False, True],
            [*SAMPLINGS, MIXED],
            DRAFTS,
            TARGETS,
        )
        for chunk in [4 * (1 if drafter == "none" else TREES[tree].nodes) + extra]
    ]


def with_own_budgets(case: Case, seed: int) -> Case:
    """The same case; each prompt drafts as much as its own random budget allows."""
    rng, tree = random.Random(seed), TREES[case.tree]
    nodes = [rng.randint(1, tree.nodes) for _ in PROMPTS]
    budgets = [
        Budget(steps=rng.randint(1, tree.steps), topk=rng.randint(1, tree.topk), nodes=own)
        for own in nodes
    ]
    return replace(case, budgets=tuple(budgets))


def some_cases(num: int, seed: int, drafters: tuple[str, ...] = ()) -> list[Case]:
    cases = [case for case in all_cases() if not drafters or case.drafter in drafters]
    return random.Random(seed).sample(cases, num)


# By the model itself, which stays alive: the id of one that is gone is given away again.
_answers: dict[tuple[Any, str, int], Answer] = {}


def right_answer(theirs, sampling: str, index: int) -> Answer:
    """The reference decoder's answer; computed once, as it depends on model and sampling alone."""
    key = (theirs, sampling, index)
    if key not in _answers:
        own = sampling_of(sampling, index)
        _answers[key] = decode(theirs, PROMPTS[index], own, max_tokens=MAX_TOKENS)
    return _answers[key]


def engine_of_case(models: Models, case: Case) -> Engine:
    return engine_of(models.target, case.shape, models.draft(case.drafter, TREES[case.tree]))


def run_case(models: Models, case: Case):
    """Outputs of all prompts in one batch, by request id."""
    return answer_case(engine_of_case(models, case), case)


def answer_case(engine: Engine, case: Case):
    """The same by this engine."""
    budgets = case.budgets or (UNLIMITED,) * len(PROMPTS)
    submissions = [
        make_submission(
            f"r{i}",
            prompt,
            sampling_of(case.sampling, i),
            max_tokens=MAX_TOKENS,
            budget=budgets[i],
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    if case.is_prefix_hit:
        run_all(engine, submissions)
    return run_all(engine, submissions)


def mismatches(models: Models, case: Case) -> list[str]:
    """Run one case; what differs from the reference decoder, in words."""
    outputs = run_case(models, case)
    found = wrong_answers(models, case, outputs)
    if case.is_prefix_hit and case.shape.page_size <= 4 and not outputs["r0"].last.progress.cached:
        found.append("the prefix cache served nothing")
    if (
        case.drafter == "twin"
        and case.sampling in ("greedy", "sampled")
        and case.tree in ("one-step", "chain")
    ):
        budgets = case.budgets or (TREES[case.tree],) * len(PROMPTS)
        drafting = [f"r{i}" for i, budget in enumerate(budgets) if budget.nodes > 1]
        found += _incomplete_acceptance({name: outputs[name] for name in drafting})
    return found


def wrong_answers(models: Models, case: Case, outputs) -> list[str]:
    """The answers of a case that are not those of the reference decoder, in words."""
    found = []
    for i in range(len(PROMPTS)):
        right, got = right_answer(models.theirs, case.sampling, i), outputs[f"r{i}"]
        if got.tokens != right.tokens:
            found.append(f"prompt {i}: {got.tokens} instead of {right.tokens}")
        elif max(abs(a - b) for a, b in zip(got.logprobs, right.logprobs, strict=True)) > 1e-4:
            found.append(f"prompt {i}: logprobs {got.logprobs} instead of {right.logprobs}")
    return found


def _incomplete_acceptance(outputs) -> list[str]:
    """A drafter that is the target proposes what the target will choose, sampled or not."""
    progress = [entry.last.progress for entry in outputs.values()]
    # The last round may draft past the end of the answer, which is cut and not counted as kept.
    if not all(each.drafted for each in progress):
        return ["a twin drafted nothing"]
    missed = sum(each.drafted - each.num_accepted for each in progress)
    return [f"{missed} drafts of a twin were not kept"] if missed > 0 else []
