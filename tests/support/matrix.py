"""The equality matrix: ways to run the engine, and laws that every way must obey alike."""

import itertools
import random
from dataclasses import dataclass

from outrider.wire.sampling import Ban, Filters, LogprobsAsked, Penalties, RowSampling
from support.engines import Shape, ask, engine_of, run_all
from support.reference import Answer, decode

ASKED = LogprobsAsked(chosen=True, top=2)
LAWS = {
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
}
_shared = [7, 3, 44, 19, 60, 2, 31, 8, 8, 25]  # more than two pages of four
PROMPTS = [[*_shared, 13, 21, 40], [*_shared, 13, 5], [50], [4, 66, 12, 9, 33]]
MAX_TOKENS = 9


@dataclass(frozen=True)
class Case:
    shape: Shape
    is_prefix_hit: bool  # the same prompts have been answered before, so their pages are cached
    law: str

    def __str__(self) -> str:
        s = self.shape
        words = [f"page{s.page_size}", f"pad{s.pad}", s.executor, f"depth{s.depth}"]
        words += [f"chunk{s.step_tokens}", "hit" if self.is_prefix_hit else "cold", self.law]
        return "-".join(words)


def all_cases() -> list[Case]:
    return [
        Case(
            Shape(page_size=page, pad=pad, executor=executor, depth=depth, step_tokens=chunk),
            is_prefix_hit=hit,
            law=law,
        )
        for page, pad, executor, depth, chunk, hit, law in itertools.product(
            [1, 4, 16, 64], [1, 4], ["eager", "tape"], [0, 1], [5, 11, 64], [False, True], LAWS
        )
    ]


def some_cases(num: int, seed: int) -> list[Case]:
    return random.Random(seed).sample(all_cases(), num)


_answers: dict[tuple[str, int], Answer] = {}


def right_answer(theirs, law: str, index: int) -> Answer:
    """The reference decoder's answer; computed once, as it depends on nothing but the law."""
    if (law, index) not in _answers:
        _answers[law, index] = decode(theirs, PROMPTS[index], LAWS[law], max_tokens=MAX_TOKENS)
    return _answers[law, index]


def mismatches(theirs, ours, case: Case) -> list[str]:
    """Run one case; what differs from the reference decoder, in words."""
    engine = engine_of(ours, case.shape)
    submissions = [
        ask(f"r{i}", prompt, LAWS[case.law], max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]
    if case.is_prefix_hit:
        run_all(engine, submissions)
    heard = run_all(engine, submissions)
    found = []
    for i in range(len(PROMPTS)):
        right, got = right_answer(theirs, case.law, i), heard[f"r{i}"]
        if got.tokens != right.tokens:
            found.append(f"prompt {i}: {got.tokens} instead of {right.tokens}")
        elif max(abs(a - b) for a, b in zip(got.logprobs, right.logprobs, strict=True)) > 1e-4:
            found.append(f"prompt {i}: logprobs {got.logprobs} instead of {right.logprobs}")
    if case.is_prefix_hit and case.shape.page_size <= 4 and not heard["r0"].last.progress.cached:
        found.append("the prefix cache served nothing")
    return found
