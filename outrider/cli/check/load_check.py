"""Answers many requests at once, with few pages and repeated prompts, and compares every token.

All prompts have the same beginning, so they find it in the prefix cache. There are too few pages
for all rows, so requests are preempted and computed again.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from outrider.cli.check.check_cases import PROMPTS, SAMPLINGS
from outrider.cli.check.compare_answers import Difference, first_difference
from outrider.cli.check.run_check import framed
from outrider.errors import CapacityError
from outrider.frontend.batch_bar import Advance
from outrider.frontend.llm import LLM
from outrider.frontend.outputs import RequestOutput
from outrider.frontend.sampling_params import MAX_LOGPROBS, SamplingParams

ROUNDS = 2  # times that each prompt is asked
_SHARE = 0.6  # of the pages that all rows need
# More than a page of tokens.
_BEGINNING = (
    "Think first. Then answer the question below in as few words as you can, without a list.\n"
)
_KINDS = ("greedy", "sampled")  # in turn

LoadPlain = Callable[[], LLM]
LoadTight = Callable[[int, int], LLM]  # for this many tokens of KV, and texts this long


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWork:
    """The requests, and how many of them run at a time."""

    prompts: Sequence[str]
    max_tokens: int
    rows: int

    @property
    def num_requests(self) -> int:
        return (1 + ROUNDS) * len(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFinding:
    """What was compared, and what was forced."""

    num_answers: int
    num_tokens: int
    differences: tuple[tuple[int, Difference], ...]  # with the number of the prompt
    cached_tokens: int
    preemptions: int
    accept_length: float


def numbered_prompts(count: int) -> list[str]:
    """Our prompts, each with a number, so that no two are equal."""
    return [f"Question {i + 1}. {PROMPTS[i % len(PROMPTS)]}" for i in range(count)]


def run_load_check(
    work: LoadWork, load_plain: LoadPlain, load_tight: LoadTight, advance: Advance
) -> LoadFinding:
    """Compare drafted answers under load with plain answers that nothing disturbed."""
    llm = load_plain()
    right = _answers(llm, work, MAX_LOGPROBS, advance)
    longest, needed = _sizes(right, work)
    del llm
    gc.collect()  # models hold reference cycles
    llm = load_tight(needed, longest)
    rounds = [_answers(llm, work, None, advance) for _ in range(ROUNDS)]
    outputs = [output for answers in rounds for output in answers]
    pairs = [(i, plain, answers[i]) for answers in rounds for i, plain in enumerate(right)]
    return LoadFinding(
        num_answers=len(outputs),
        num_tokens=sum(output.usage.completion_tokens for output in outputs),
        differences=tuple(
            (i, difference)
            for i, plain, other in pairs
            for difference in first_difference(plain.outputs[0], other.outputs[0].token_ids)
        ),
        cached_tokens=sum(output.usage.cached_tokens for output in outputs),
        preemptions=sum(output.timing.preemptions for output in outputs),
        accept_length=_accept_length(outputs),
    )


def _answers(
    llm: LLM, work: LoadWork, logprobs: int | None, advance: Advance
) -> list[RequestOutput]:
    params = [_params(index, work, logprobs) for index in range(len(work.prompts))]
    prompts = [framed(llm, _BEGINNING + text) for text in work.prompts]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    for output in outputs:
        if output.error:
            raise CapacityError(f"an answer broke off, so nothing is proved: {output.error}")
        advance(output.usage.completion_tokens)
    return outputs


def _params(index: int, work: LoadWork, logprobs: int | None) -> SamplingParams:
    usual = SAMPLINGS[_KINDS[index % len(_KINDS)]]
    return replace(usual, seed=index, max_tokens=work.max_tokens, logprobs=logprobs)


def _sizes(outputs: Sequence[RequestOutput], work: LoadWork) -> tuple[int, int]:
    """Tokens of the longest text, and of KV: too few for all rows."""
    texts = [output.usage.prompt_tokens + work.max_tokens for output in outputs]
    mean = sum(texts) / len(texts)
    return max(texts), max(2 * max(texts), int(_SHARE * work.rows * mean))


def _accept_length(outputs: Sequence[RequestOutput]) -> float:
    each = [output.outputs[0].acceptance for output in outputs]
    rounds = sum(one.rounds for one in each)
    return 1.0 + sum(one.kept for one in each) / rounds if rounds else 1.0
