"""How far a batch drafts, from what its steps cost and what its drafts gain: never slower.

Checking drafts is free while a step is bound by reading weights, and costs its share once there are
many query tokens. Where that is depends on the machine, the model, the number of rows, the prompts
read beside them and the text, so it is measured: every size of batch tries a few budgets now and
then, and uses the best of them.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from outrider.wire.speculation import PLAIN, UNBOUNDED, Budget

_SHARES = (0.25, 0.5, 1.0)  # of the configured budget, besides plain decoding
_FIRST_STEPS = 8  # of a new size of batch, with the whole budget; then plain decoding is tried
_TRIAL_STEPS = 4
_STEPS_BETWEEN_TRIALS = 256
_UNSETTLED = 2  # the first steps of a shape compile and record
_MEMORY = 0.1  # weight of a new sample
_LEAST_GAIN = 1.03  # below, changing the budget is not worth new shapes


@dataclass(slots=True)
class _Mean:
    """A moving mean that leaves out its first samples."""

    value: float = 0.0
    num: int = -_UNSETTLED

    def note(self, sample: float) -> None:
        self.num += 1
        if self.num == 1:
            self.value = sample
        elif self.num > 1:
            self.value += _MEMORY * (sample - self.value)

    @property
    def is_known(self) -> bool:
        return self.num > 0


class _Size:
    """Batches of about one size: what each rung costs them, and when it was used."""

    def __init__(self, num_rungs: int) -> None:
        self.costs = [_Mean() for _ in range(num_rungs)]  # seconds of a step
        self.chosen = num_rungs - 1  # but for trials: the whole budget until something is better
        self._last_s = [math.inf] * num_rungs  # of the last step
        self._used_at = [-1] * num_rungs  # number of the last step
        self._num_steps = 0
        self._next_trial = _FIRST_STEPS  # in this step, or as soon as there is what to compare with
        self._trials: list[int] = []  # rungs of the next steps

    def next_rung(self) -> int:
        """The rung of the next step: the chosen one, unless another has its trial."""
        if self._num_steps >= self._next_trial and self.costs[self.chosen].is_known:
            self._next_trial = self._num_steps + _STEPS_BETWEEN_TRIALS
            self._trials = [self._stalest()] * _TRIAL_STEPS
        rung = self._trials.pop() if self._trials else self.chosen
        self._used_at[rung] = self._num_steps
        self._num_steps += 1
        return rung

    def note(self, rung: int, seconds: float) -> None:
        """Take in a step. If it alone took long it has recorded its shape, which says nothing."""
        self.costs[rung].note(min(seconds, self._last_s[rung]))
        self._last_s[rung] = seconds

    def _stalest(self) -> int:
        """The rung used longest ago: what is known of it may not be true any more."""
        others = [rung for rung in range(len(self.costs)) if rung != self.chosen]
        return min(others, key=self._used_at.__getitem__, default=self.chosen)


class DraftPolicy(Protocol):
    """Bounds the budgets of a step, and hears how it went."""

    def choose(self, step: int, num_rows: int, num_prompt: int = 0) -> Budget:
        """The most a row of this step may draft, beside about so many tokens of prompts."""
        ...

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        """A step is complete."""
        ...

    def forget(self, step: int) -> None:
        """No row decodes in this step after all."""
        ...


class WholeBudget:
    """Every row drafts as far as it may."""

    def choose(self, step: int, num_rows: int, num_prompt: int = 0) -> Budget:
        del step, num_rows, num_prompt
        return UNBOUNDED

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        pass

    def forget(self, step: int) -> None:
        pass


class Adaptation:
    """Owns what was measured. Its ladder leads from plain decoding to the whole budget."""

    def __init__(self, budget: Budget) -> None:
        self.ladder = ladder_of(budget)
        self._sizes: dict[tuple[int, int], _Size] = {}  # by octaves of rows and prompt tokens
        self._gains = [_Mean(num=0) for _ in self.ladder]  # tokens a round emits, by rung
        self._chosen: dict[int, tuple[_Size, int]] = {}  # by step in flight

    def choose(self, step: int, num_rows: int, num_prompt: int = 0) -> Budget:
        octaves = (num_rows.bit_length(), num_prompt.bit_length())
        size = self._sizes.setdefault(octaves, _Size(len(self.ladder)))
        rates = [self._rate(size, rung) for rung in range(len(self.ladder))]
        if max(rates) > _LEAST_GAIN * rates[size.chosen]:
            size.chosen = rates.index(max(rates))
        rung = size.next_rung()
        self._chosen[step] = (size, rung)
        return self.ladder[rung]

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        if step in self._chosen:
            size, rung = self._chosen.pop(step)
            size.note(rung, seconds)
            self._gains[rung].note(emitted_per_row)

    def forget(self, step: int) -> None:
        self._chosen.pop(step, None)

    def _rate(self, size: _Size, rung: int) -> float:
        """Tokens per second and row; what was never tried lies between its neighbours."""
        gain = self._between(self._gains, rung)
        cost = self._between(size.costs, rung)
        return gain / cost if cost > 0 else 0.0

    def _between(self, means: list[_Mean], rung: int) -> float:
        if means[rung].is_known:
            return means[rung].value
        known = [index for index, mean in enumerate(means) if mean.is_known]
        below = max((index for index in known if index < rung), default=-1)
        above = min((index for index in known if index > rung), default=-1)
        if below < 0 or above < 0:
            return means[max(below, above)].value if known else 0.0
        first, last = self.ladder[below].nodes, self.ladder[above].nodes
        share = (self.ladder[rung].nodes - first) / (last - first)
        return means[below].value + share * (means[above].value - means[below].value)


def ladder_of(budget: Budget) -> tuple[Budget, ...]:
    """Plain decoding, parts of the budget, the whole of it; each once."""
    rungs = {PLAIN: None}
    for share in _SHARES:
        part = Budget(
            steps=max(1, round(budget.steps * share)),
            topk=budget.topk,
            nodes=max(2, 1 + round((budget.nodes - 1) * share)),
        )
        rungs[part.within(budget)] = None
    return tuple(rungs)
