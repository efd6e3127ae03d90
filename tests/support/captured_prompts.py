"""Prompts of one shape, one after the other, through an engine whose buffers hold no old value."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from outrider.engine.engine import Engine
from outrider.runtime.runner import Runner
from outrider.step.executor import Executor
from outrider.step.graph_executor import GraphExecutor
from outrider.step.tape_executor import TapeExecutor
from outrider.wire.submission import Submission
from support.embedded_prompts import embeds_submission, random_embeds
from support.engines import Shape, engine_of, make_submission
from support.matrix import TREES, Models, sampling_of

LENGTH = 13
NUM_PROMPTS = 4  # the same shape three times and once more
TRACED = replace(sampling_of("greedy", 0), trace=True)


@dataclass(frozen=True, kw_only=True)
class PromptRun:
    """What one prompt left behind, and how its steps ran."""

    tokens: list[int]
    trees: list[tuple[int, ...]]  # tokens of the draft tree of every round
    pools: list[torch.Tensor]  # all pages of target and drafter; page 0 is padding
    num_steps: int
    num_eager: int
    num_breaks: int  # of all captures so far


def prompt_of(number: int) -> list[int]:
    return [(7 * number + 3 * place) % 60 + 3 for place in range(LENGTH)]


def token_prompt(models: Models, number: int) -> Submission:
    del models
    return make_submission("a", prompt_of(number), TRACED, max_tokens=8)


def embeds_prompt(models: Models, number: int) -> Submission:
    """A prompt of embeddings that no token has."""
    vectors = random_embeds(models.theirs, LENGTH, seed=number)
    return embeds_submission("a", vectors, TRACED)


def run_prompts(
    models: Models,
    shape: Shape,
    drafter: str = "eagle3",
    tree: str = "tree",
    make: Callable[[Models, int], Submission] = token_prompt,
) -> list[PromptRun]:
    """Every prompt runs alone, cold, with NaN in all plans before each of its steps."""
    engine = engine_of(
        models.target, replace(shape, prefix_cache=False), models.draft(drafter, TREES[tree])
    )
    return [_run(engine, make(models, number)) for number in range(NUM_PROMPTS)]


def _run(engine: Engine, submission: Submission) -> PromptRun:
    runner = engine._runner
    assert isinstance(runner, Runner)
    before = runner.counts
    engine.add(submission)
    tokens: list[int] = []
    trees: list[tuple[int, ...]] = []
    while engine.has_work:
        _poison(runner)
        for update in engine.step():
            assert update.finish != "error", update.reason
            tokens += update.tokens
            trees += [each.tokens for each in update.rounds]
    with runner.stream.active():
        pools = [page[1:].clone().cpu() for page in runner.pages.page_tensors]
    return PromptRun(
        tokens=tokens,
        trees=trees,
        pools=pools,
        num_steps=runner.counts.steps - before.steps,
        num_eager=runner.counts.eager - before.eager,
        num_breaks=_count_breaks(runner._executor),
    )


def _count_breaks(executor: Executor) -> int:
    if isinstance(executor, GraphExecutor):
        return sum(graph.num_breaks for graph in executor._graphs.values())
    if not isinstance(executor, TapeExecutor):
        return 0
    calls = [each.call for tape, _ in executor._tapes.values() for each in tape]
    return sum(not isinstance(call, torch._ops.OpOverload) for call in calls)


@torch.inference_mode()
def _poison(runner: Runner) -> None:
    """Overwrite the plans of target and drafter. No step is in flight."""
    drafter = runner._program.drafter._drafter
    with runner.stream.active():
        runner._planner._arena.poison()
        drafter._planner._arena.poison()
        runner._planner.forget()
