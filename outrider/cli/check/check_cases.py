"""What a check tries: sampling parameters, draft shapes, and executors."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from outrider.config.draft_config import AUTO, NO_DRAFT, DraftConfig
from outrider.config.engine_config import Executor
from outrider.frontend.sampling_params import SamplingParams

_SEED = 20  # arbitrary; the same for all, so that a mismatch can be repeated

SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, ignore_eos=True),
    "sampled": SamplingParams(seed=_SEED, ignore_eos=True),
    "all logits processing": SamplingParams(
        seed=_SEED,
        temperature=1.2,
        top_k=50,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        logit_bias={7: -5.0},
        min_tokens=4,
        ignore_eos=True,
    ),
}
QUICK_SAMPLINGS = ("greedy", "all logits processing")
PROMPTS = (
    "Write a Python function that reverses a linked list, then write it again without recursion.",
    "A shop sells pens at 3 for 2 euros. How much do 12 pens cost? Think step by step.",
    "Repeat this sentence three times: The rider goes ahead and the party confirms the road.",
    "Why is the sky blue? Answer in two sentences.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How one engine is built."""

    name: str  # of the drafts: plain, chain or tree
    draft: DraftConfig
    executor: Executor
    depth: int


PLAIN = Configuration(name="plain", draft=NO_DRAFT, executor="eager", depth=0)


def configurations(
    draft: DraftConfig,
    executors: Sequence[Executor],
    depths: Sequence[int] = (0, 1),
    *,
    has_trees: bool = True,
) -> Iterator[Configuration]:
    """Chains and trees of the drafter, with each executor and each depth of overlap.

    The user's sizes are those of the chain or of the tree; the other shape has usual sizes.
    """
    draft = replace(draft, adaptive=False)  # an adaptive engine might not draft at all
    chain = replace(draft, topk=1, nodes=AUTO)
    tree = replace(draft, steps=3, topk=3, nodes=10)
    wanted = ("chain", draft) if draft.topk in (AUTO, 1) else ("tree", draft)
    shapes = {"chain": chain} | ({"tree": tree} if has_trees else {}) | dict([wanted])
    for name, executor, depth in itertools.product(shapes, executors, depths):
        yield Configuration(name=name, draft=shapes[name], executor=executor, depth=depth)
