"""The equality matrix on several ranks: random ways to run every family, drafter and sampling."""

import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from outrider.engine.engine import Engine
from outrider.runtime.build_runner import assemble_runner
from outrider.structured.grammar_cache import NO_GRAMMARS, GrammarCache, Grammars
from outrider.wire.draft_budget import Budget
from outrider.wire.grammar_spec import Grammar
from outrider.wire.row_sampling import LogprobsWanted, RowSampling
from outrider.wire.submission import Submission
from support import matrix, row_matrix
from support.engines import Shape, buckets_of, make_submission, run_all, settings_of
from support.grammars import PlainMasks, decode_plainly
from support.matchers import MatcherStates
from support.rank_models import NO_CHAIN, PAGED, ROW_STATE, RankedModels, RankFamily, drafters_of
from support.reference import Answer, decode
from support.row_harness import PAGE_SIZE
from support.thread_ranks import LockstepRunner, RanksDiffer
from support.tiny import VOCAB
from support.tiny_vocabulary import END, SPECS, TINY

GRAMMAR = "grammar"
MAX_TOKENS = 9
ROUNDING = 1e-4  # of log-probabilities
SAMPLINGS = [*matrix.SAMPLINGS, matrix.MIXED, GRAMMAR]


@dataclass(frozen=True, kw_only=True)
class RankCase:
    family: str
    size: int
    shape: Shape
    sampling: str
    drafter: str
    tree: str
    is_prefix_hit: bool
    is_adaptive: bool
    has_logprobs: bool = True  # else logits need not be gathered

    def __str__(self) -> str:
        s, drafter = self.shape, self.drafter
        words = [self.family, f"tp{self.size}", f"page{s.page_size}", f"pad{s.pad}", s.executor]
        words += [f"depth{s.depth}", f"chunk{s.step_tokens}", "hit" if self.is_prefix_hit else ""]
        words += [self.sampling, drafter, self.tree if drafter != "none" else ""]
        words += ["adaptive" if self.is_adaptive else "", "" if self.has_logprobs else "plain"]
        return "-".join(word for word in words if word)

    @property
    def budget(self) -> Budget:
        return matrix.TREES[self.tree]

    @property
    def prompts(self) -> list[list[int]]:
        return row_matrix.PROMPTS if self.family in ROW_STATE else matrix.PROMPTS


def random_case(rng: random.Random, family: str) -> RankCase:
    has_rows, drafter = family in ROW_STATE, rng.choice(drafters_of(family))
    chains = ["one-step", "chain"]
    tree = rng.choice(chains if has_rows or drafter in NO_CHAIN else list(matrix.TREES))
    nodes = 1 if drafter == "none" else matrix.TREES[tree].nodes
    shape = Shape(
        page_size=PAGE_SIZE if has_rows else rng.choice([1, 4, 16]),
        pad=rng.choice([1, 4]),
        executor=rng.choice(["eager", "tape"]),
        depth=rng.choice([0, 1]),
        step_tokens=4 * nodes + rng.choice([1, 7, 60]),
    )
    return RankCase(
        family=family,
        size=rng.choice((PAGED | ROW_STATE)[family]),
        shape=shape,
        sampling=rng.choice(SAMPLINGS),
        drafter=drafter,
        tree=tree,
        is_prefix_hit=rng.choice([False, True]),
        is_adaptive=drafter != "none" and rng.random() < 0.2,
        has_logprobs=rng.choice([False, True]),
    )


def some_cases(num: int, seed: int) -> list[RankCase]:
    """Random cases, as many of each family."""
    rng, families = random.Random(seed), [*PAGED, *ROW_STATE]
    return [random_case(rng, families[index % len(families)]) for index in range(num)]


class RankMatrix:
    """The families that were made so far, and the right answers."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._families: dict[str, RankFamily] = {}
        self._answers: dict[tuple[str, str, bool, int], Answer] = {}

    def models(self, family: str, size: int) -> RankedModels:
        return self.family(family).on(size)

    def family(self, name: str) -> RankFamily:
        if name not in self._families:
            self._families[name] = RankFamily(name, self._root / name)
        return self._families[name]

    def mismatches(self, case: RankCase) -> list[str]:
        """Run one case; what differs from the reference decoder or between ranks, in words."""
        try:
            outputs, found = self.run(case), []
        except RanksDiffer as error:
            return [str(error)]
        for i in range(len(case.prompts)):
            right, got = self.right_answer(case, i), outputs[f"r{i}"]
            if got.tokens != right.tokens:
                found.append(f"prompt {i}: {got.tokens}, not {right.tokens}; {got.last.reason}")
            elif len(got.logprobs) == len(right.logprobs) and any(
                abs(a - b) > ROUNDING for a, b in zip(got.logprobs, right.logprobs, strict=True)
            ):
                found.append(f"prompt {i}: logprobs {got.logprobs}, not {right.logprobs}")
        return found

    def run(self, case: RankCase):
        """Outputs of all prompts in one batch, by request id."""
        engine = self.engine(case)
        submissions = [submission_of(case, index) for index in range(len(case.prompts))]
        if case.is_prefix_hit:
            run_all(engine, submissions)
        return run_all(engine, submissions)

    def engine(self, case: RankCase) -> Engine:
        models = self.models(case.family, case.size)
        drafts = models.drafts(case.drafter, case.budget, is_adaptive=case.is_adaptive)
        grammars = grammar_cache() if case.sampling == GRAMMAR else NO_GRAMMARS
        return ranked_engine(models, case.shape, drafts, grammars)

    def right_answer(self, case: RankCase, index: int) -> Answer:
        key = (case.family, case.sampling, case.has_logprobs, index)
        if key not in self._answers:
            self._answers[key] = self._decode(case, index)
        return self._answers[key]

    def _decode(self, case: RankCase, index: int) -> Answer:
        theirs, prompt = self.family(case.family).theirs, case.prompts[index]
        sampling = sampling_of(case, index)
        if case.sampling != GRAMMAR:
            return decode(theirs, prompt, sampling, max_tokens=MAX_TOKENS)
        how = {"max_tokens": MAX_TOKENS, "stop_ids": (END,)}
        return Answer(tokens=decode_plainly(theirs, masks(), prompt, sampling, **how), logprobs=[])


def ranked_engine(models: RankedModels, shape: Shape, drafts, grammars: Grammars = NO_GRAMMARS):
    """An engine over the runners of all ranks."""

    def assemble(rank: int):
        return assemble_runner(
            models.targets[rank],
            settings_of(shape),
            draft=drafts[rank],
            kv_tokens=shape.kv_tokens,
            buckets=buckets_of(shape),
            grammars=grammars if rank == 0 else NO_GRAMMARS,
            ranks=models.group.ranks[rank],
        )

    built = models.group.run(assemble)
    runner = LockstepRunner(models.group, [each for each, _ in built])
    adapters = runner.runners[0].adapters
    return Engine(runner, built[0][1], runner.grammars, adapters=adapters)


def sampling_of(case: RankCase, index: int) -> RowSampling:
    if case.sampling == GRAMMAR:
        specs = list(SPECS.values())
        grammar = Grammar(spec=specs[index % len(specs)], ends=(END,))
        return RowSampling(seed=31 + index, temperature=1.0, grammar=grammar)
    sampling = matrix.sampling_of(case.sampling, index)
    if not case.has_logprobs:
        return replace(sampling, logprobs=LogprobsWanted())
    # Few words repeat, so that some drafts of n-grams are accepted.
    return replace(sampling, bias=row_matrix.FEW_WORDS) if case.family in ROW_STATE else sampling


def submission_of(case: RankCase, index: int) -> Submission:
    return make_submission(
        f"r{index}",
        case.prompts[index],
        sampling_of(case, index),
        max_tokens=MAX_TOKENS,
        stop_ids=(END,) if case.sampling == GRAMMAR else (),
    )


@cache
def grammar_cache() -> GrammarCache:
    return GrammarCache(lambda: TINY, vocab_size=VOCAB)


@cache
def masks() -> PlainMasks:
    return PlainMasks(MatcherStates())
