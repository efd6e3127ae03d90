"""A load of random prompts, from the flags of `churn`. No torch."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.bench.churn.churn_work import ChurnWork

_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomChurn:
    """A load of random prompts, and drafts that are accepted by chance."""

    work: ChurnWork
    prompt: int  # mean length; lengths are between half and one and a half of it
    draft_steps: int
    emitted: float  # tokens of a drafted round, on average

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and its answer."""
        return self.prompt + self.prompt // 2 + self.work.answer

    def prompts(self, *, vocab: int) -> Iterator[tuple[int, ...]]:
        """A prompt of random ids for every request."""
        return random_prompts(self.work.requests, mean=self.prompt, vocab=vocab)


def random_prompts(num: int, *, mean: int, vocab: int) -> Iterator[tuple[int, ...]]:
    """Random ids; lengths are between half and one and a half of the mean."""
    draw = random.Random(_SEED)
    for _ in range(num):
        length = draw.randint(max(1, mean // 2), mean + mean // 2)
        yield tuple(draw.randrange(vocab) for _ in range(length))
