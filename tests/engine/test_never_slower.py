"""A long queue on a device whose steps have a price: adaptive drafting against plain decoding and
against the whole budget.
"""

import random

import pytest
from support.paper import PaperRunner, facts, submission

from outrider.engine.engine import Engine

NUM_REQUESTS = 1200
LOST = 1.04  # that first steps and trials may cost


class Priced(PaperRunner):
    """Rounds keep a draft with some probability; what they say does not matter here."""

    keep_rate = 0.0

    def _decode(self, row, bound, nodes):
        num_accepted = 1
        while num_accepted < nodes and self.rng.random() < self.keep_rate:
            num_accepted += 1
        self.lengths[row] += num_accepted
        return (1,) * num_accepted

    def _chunk(self, chunk):
        self.lengths[chunk.row] = chunk.start + len(chunk.tokens)
        return (1,) if chunk.is_last else ()


def seconds_of(load, *, nodes, is_adaptive, price, keep_rate):
    """The time that all requests take together."""
    prompt, answer, rows, step_tokens = load
    known = facts(
        nodes=nodes,
        max_rows=rows,
        step_tokens=step_tokens,
        num_pages=100_000,
        max_context=1000,
        max_queued=NUM_REQUESTS,
        prefix_cache=False,
        is_adaptive=is_adaptive,
    )
    spent = []

    def take(width):
        spent.append(price(width))
        return spent[-1]

    runner = Priced(known, random.Random(1), seconds=take)
    runner.keep_rate = keep_rate
    engine = Engine(runner, known)
    for number in range(NUM_REQUESTS):
        engine.add(submission(str(number), [1] * prompt, max_tokens=answer))
    while engine.has_work:
        engine.step()
    return sum(spent)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("keep_rate", [0.1, 0.6])
@pytest.mark.parametrize(
    ("load", "price"),
    [
        ((400, 32, 64, 1024), lambda width: max(1.0, width / 200)),
        ((400, 32, 32, 1024), lambda width: 1 + width / 100),
        ((200, 64, 32, 512), lambda width: max(1.0, width / 200)),
        ((100, 48, 32, 512), lambda width: 1 + width / 100),
    ],
    ids=["long prompts", "long prompts, few rows", "long answers", "short prompts"],
)
def test_adaptive_drafting_is_as_fast_as_the_better_of_none_and_all(load, price, keep_rate):
    world = {"price": price, "keep_rate": keep_rate}
    plain = seconds_of(load, nodes=1, is_adaptive=False, **world)
    whole = seconds_of(load, nodes=5, is_adaptive=False, **world)
    assert seconds_of(load, nodes=5, is_adaptive=True, **world) < LOST * min(plain, whole)
