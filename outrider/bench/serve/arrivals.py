"""When requests of an open loop are sent: a Poisson process, the same for the same seed."""

import itertools
import random
from collections.abc import Iterator


def poisson_arrivals(*, rate: float, seed: int) -> Iterator[float]:
    """Seconds from the start, without an end; the first request is sent at once."""
    generator = random.Random(seed)
    gaps_s = (generator.expovariate(rate) for _ in itertools.count())
    return itertools.accumulate(gaps_s, initial=0.0)
