"""Random requests: prompts that share prefixes, all sampling parameters, arrivals and aborts."""

from dataclasses import dataclass
from random import Random

from support.engines import UNLIMITED

from hostile.life_models import VOCAB
from outrider.wire.draft_budget import PLAIN, Budget
from outrider.wire.row_sampling import (
    Ban,
    Filters,
    LogprobsWanted,
    Penalties,
    PromptLogprobs,
    Restrictions,
    RowSampling,
)
from outrider.wire.submission import Limits, Submission

NEVER = -1


@dataclass(frozen=True)
class Arrival:
    """A request, the step in which it arrives, and the step in which it is aborted."""

    at: int
    abort_at: int  # NEVER: it runs to its end
    submission: Submission


def draw_arrivals(rng: Random, max_context: int) -> list[Arrival]:
    """The requests of one life, by request id."""
    words = rng.sample(range(VOCAB), rng.choice([2, 4, VOCAB]))  # few words repeat themselves
    stems = [rng.choices(words, k=rng.randint(1, max_context // 2)) for _ in range(2)]
    arrivals = []
    for index in range(rng.randint(1, 12)):
        at = rng.choice([0, 0, rng.randint(0, 30)])
        abort_at = at + rng.randint(0, 20) if rng.random() < 0.2 else NEVER
        prompt = _draw_prompt(rng, words, stems, max_context - 1)
        arrivals.append(Arrival(at, abort_at, _draw_submission(rng, f"r{index}", prompt, words)))
    return arrivals


def _draw_prompt(rng: Random, words: list[int], stems: list[list[int]], most: int) -> list[int]:
    stem = rng.choice([[], *stems])
    own = rng.choices(words, k=rng.randint(0 if stem else 1, max(1, most // 3)))
    return (stem[: rng.randint(1, len(stem))] if stem and rng.random() < 0.3 else stem + own)[:most]


def _draw_submission(rng: Random, name: str, prompt: list[int], words: list[int]) -> Submission:
    limits = Limits(
        max_tokens=rng.choice([1, rng.randint(1, 40), 40, 60]),
        stop_ids=frozenset(rng.sample(range(VOCAB), rng.choice([0, 0, 1, 5]))),
    )
    budget = Budget(steps=rng.randint(0, 6), topk=rng.randint(1, 5), nodes=rng.randint(1, 20))
    return Submission(
        request_id=name,
        prompt=tuple(prompt),
        sampling=draw_sampling(rng, len(prompt), words),
        limits=limits,
        budget=rng.choice([UNLIMITED, UNLIMITED, UNLIMITED, PLAIN, budget]),
        priority=rng.choice([0, 0, 0, rng.randint(-3, 3)]),
        cache_salt=rng.choice(["", "", "", "a", "b"]),
    )


def draw_sampling(rng: Random, num_prompt: int, words: list[int]) -> RowSampling:
    """Every parameter is in use in some draws and absent in others."""
    bias = dict.fromkeys(rng.sample(words, min(3, len(words))), 30.0)
    if rng.random() < 0.5:
        bias = {rng.randrange(VOCAB): rng.uniform(-5, 5) for _ in range(rng.choice([0, 0, 4]))}
    return RowSampling(
        seed=rng.getrandbits(rng.choice([3, 62])),
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0, rng.uniform(0.05, 2.0)]),
        filters=rng.choice([Filters(), _draw_filters(rng)]),
        penalties=rng.choice([Penalties(), _draw_penalties(rng)]),
        bias=tuple(bias.items()),
        ban=rng.choice([Ban(), _draw_ban(rng, num_prompt)]),
        restrictions=rng.choice([Restrictions(), Restrictions(), _draw_restrictions(rng, words)]),
        logprobs=rng.choice([LogprobsWanted(), _draw_logprobs(rng, num_prompt)]),
        trace=rng.random() < 0.2,
        prediction=tuple(rng.choices(words, k=rng.choice([0, 0, 3, 40]))),
    )


def _draw_filters(rng: Random) -> Filters:
    return Filters(
        top_k=rng.choice([0, 1, rng.randint(1, VOCAB + 5)]),
        top_p=rng.choice([1.0, rng.uniform(0.05, 1.0)]),
        min_p=rng.choice([0.0, rng.uniform(0.0, 0.5)]),
    )


def _draw_penalties(rng: Random) -> Penalties:
    return Penalties(
        repetition=rng.choice([1.0, rng.uniform(0.8, 1.5)]),
        presence=rng.choice([0.0, rng.uniform(-2, 2)]),
        frequency=rng.choice([0.0, rng.uniform(-2, 2)]),
    )


def _draw_ban(rng: Random, num_prompt: int) -> Ban:
    banned = tuple(rng.sample(range(VOCAB), rng.randint(1, 5)))
    return Ban(before=num_prompt + rng.randint(0, 20), tokens=banned)


def _draw_restrictions(rng: Random, words: list[int]) -> Restrictions:
    """Some tokens are always left: at most half of the vocabulary is excluded by one rule."""
    if rng.random() < 0.5:
        return Restrictions(allowed=tuple(rng.sample(range(VOCAB), rng.randint(VOCAB // 2, VOCAB))))
    sequences = (tuple(rng.choices(words, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 8)))
    return Restrictions(bad_words=tuple(dict.fromkeys(sequences)))


def _draw_logprobs(rng: Random, num_prompt: int) -> LogprobsWanted:
    return LogprobsWanted(
        chosen=True,
        top=rng.choice([0, rng.randint(0, 8)]),
        named=tuple(rng.sample(range(VOCAB), rng.choice([0, 0, 3]))),
        prompt=PromptLogprobs(
            is_wanted=rng.random() < 0.3,
            first=rng.randint(1, max(1, num_prompt - 1)),
            top=rng.randint(0, 3),
        ),
    )
