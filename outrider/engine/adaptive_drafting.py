"""How far a batch drafts, from measured step times and measured acceptance.

Verifying drafts is free while a step is bound by reading weights, and costs time once there are
many query tokens. The border depends on the machine, the model, the number of rows, the prompt
tokens beside them and the text. So it is measured: every batch size tries a few budgets now and
then, and uses the one with the most tokens per second.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from outrider.wire.draft_budget import PLAIN, UNBOUNDED, Budget

_SHARES = (0.25, 0.5, 1.0)  # of the configured budget, besides plain decoding
_FIRST_STEPS = 8  # of a new size of batch; then another budget is tried, plain decoding first
_TRIAL_STEPS = 4
_LONGEST_TRIAL = 16
_STEPS_BETWEEN_TRIALS = 256
_UNSETTLED = 2  # the first steps of a shape compile kernels and capture graphs
_MEMORY = 0.1  # weight of a new sample
_LEAST_GAIN = 1.03  # a smaller gain is not worth new shapes
_MOST_PROMPT = 0.95  # largest share of a step that is attributed to its prompts


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
    """Batches of about one size: the cost of each rung (budget), and when it was used."""

    def __init__(self, num_rungs: int, chosen: int) -> None:
        self.chosen = chosen  # the rung used outside of trials
        self.costs = [_Mean() for _ in range(num_rungs)]  # seconds of a step
        self.rows, self.prompt = _Mean(num=0), _Mean(num=0)  # of steps: rows, tokens of prompts
        self._last_s = [math.inf] * num_rungs  # of the last step
        self._used_at = [-1] * num_rungs  # number of the last step
        self._num_steps = 0
        # From this step on a trial is due; it waits until there is a cost to compare with.
        self._next_trial = _FIRST_STEPS
        self._tried, self._tried_since = chosen, -_LONGEST_TRIAL  # rung, number of the first step

    @property
    def is_known(self) -> bool:
        return self.costs[self.chosen].is_known

    def next_rung(self) -> int:
        """The rung of the next step: the chosen one, unless another rung is on trial."""
        if self._num_steps >= self._next_trial and self.is_known:
            self._next_trial = self._num_steps + _STEPS_BETWEEN_TRIALS
            self._tried, self._tried_since = self._least_recently_used(), self._num_steps
        rung = self._tried if self._is_trying() else self.chosen
        self._used_at[rung] = self._num_steps
        self._num_steps += 1
        return rung

    def _is_trying(self) -> bool:
        """A rung without measurements gets a longer trial: some steps end up at another size."""
        is_new = not self.costs[self._tried].is_known
        return self._num_steps - self._tried_since < (_LONGEST_TRIAL if is_new else _TRIAL_STEPS)

    def note(self, rung: int, seconds: float, *, num_rows: int, num_prompt: int) -> None:
        """Measure a step by the faster of the last two on its rung.

        A single slow step is usually one that captured a graph.
        """
        self.costs[rung].note(min(seconds, self._last_s[rung]))
        self._last_s[rung] = seconds
        self.rows.note(num_rows)
        self.prompt.note(num_prompt)

    def _least_recently_used(self) -> int:
        """The rung used longest ago: its measurements may be out of date."""
        others = [rung for rung in range(len(self.costs)) if rung != self.chosen]
        return min(others, key=self._used_at.__getitem__, default=self.chosen)


class DraftPolicy(Protocol):
    """Bounds the draft budgets of a step by what earlier steps cost and emitted."""

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Budget:
        """The largest budget of a row in this step with about `num_prompt` prompt tokens."""
        ...

    def settle(self, step: int, *, num_rows: int, num_prompt: int) -> None:
        """The sizes that the step really has: decode rows and prompt tokens."""
        ...

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        """A step with decode rows is complete."""
        ...


class WholeBudget:
    """Every row uses its whole budget."""

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Budget:
        del step, num_rows, num_prompt
        return UNBOUNDED

    def settle(self, step: int, *, num_rows: int, num_prompt: int) -> None:
        pass

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A step in flight."""

    rung: int
    num_rows: int
    num_prompt: int


class Adaptation:
    """Owns the measurements. Its ladder of budgets goes from plain decoding to the whole budget."""

    def __init__(self, budget: Budget) -> None:
        self.ladder = ladder_of(budget)
        self._sizes: dict[tuple[int, int], _Size] = {}  # by octaves of rows and prompt tokens
        self._gains = [_Mean(num=0) for _ in self.ladder]  # tokens a round emits, by rung
        self._rungs: dict[int, int] = {}  # of steps that are being scheduled
        self._steps: dict[int, _Step] = {}  # of those in flight

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Budget:
        size = self._like(num_rows, num_prompt)
        rates = [self._rate(size, rung) for rung in range(len(self.ladder))]
        if max(rates) > _LEAST_GAIN * rates[size.chosen]:
            size.chosen = rates.index(max(rates))
        rung = size.next_rung()
        self._rungs[step] = rung
        return self.ladder[rung]

    def settle(self, step: int, *, num_rows: int, num_prompt: int) -> None:
        if step in self._rungs:
            rung = self._rungs.pop(step)
            if num_rows:
                self._steps[step] = _Step(rung=rung, num_rows=num_rows, num_prompt=num_prompt)

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        self._steps = {
            one: each for one, each in self._steps.items() if one >= step
        }  # earlier ones failed
        if step in self._steps:
            was = self._steps.pop(step)
            size = self._size_of(was.num_rows, was.num_prompt)
            size.note(was.rung, seconds, num_rows=was.num_rows, num_prompt=was.num_prompt)
            self._gains[was.rung].note(emitted_per_row)

    def _like(self, num_rows: int, num_prompt: int) -> _Size:
        """The measurements of this batch size, or of the nearest size while there are none."""
        size = self._size_of(num_rows, num_prompt)
        return size if size.is_known else self._neighbour(num_rows, num_prompt) or size

    def _size_of(self, num_rows: int, num_prompt: int) -> _Size:
        octaves = (num_rows.bit_length(), num_prompt.bit_length())
        if octaves not in self._sizes:
            near = self._neighbour(num_rows, num_prompt)
            chosen = near.chosen if near else len(self.ladder) - 1
            self._sizes[octaves] = _Size(len(self.ladder), chosen)
        return self._sizes[octaves]

    def _neighbour(self, num_rows: int, num_prompt: int) -> _Size | None:
        """The measured size with as many rows that is nearest in prompt tokens.

        Fewer prompt tokens are preferred to more: drafts cost more in a step with more tokens.
        """
        rows, prompt = num_rows.bit_length(), num_prompt.bit_length()
        known = [
            (other > prompt, abs(other - prompt), size)
            for (row, other), size in self._sizes.items()
            if row == rows and size.is_known
        ]
        return min(known, key=lambda each: each[:2])[2] if known else None

    def _rate(self, size: _Size, rung: int) -> float:
        """Tokens per second and row. A rung that was never tried is interpolated.

        The rate is 0 for a rung above all rungs that were tried: only a trial can tell its cost.
        """
        if not any(cost.is_known for cost in size.costs[rung:]):
            return 0.0
        gain = self._between(self._gains, rung)
        cost = self._between(size.costs, rung) - self._prompt_s(size)
        return gain / cost if cost > 0 else 0.0

    def _prompt_s(self, size: _Size) -> float:
        """Seconds of a step that its prompt tokens cost, each at the price of a draft token.

        Without drafts the prompts would be read too, in other steps, so their time must not make
        any rung look better.
        """
        plain, whole, prompt = size.costs[0], size.costs[-1], size.prompt.value
        if not (prompt and plain.is_known and whole.is_known):
            return 0.0
        num_drafts = size.rows.value * max(self.ladder[-1].nodes - 1, 1)
        each = max(whole.value - plain.value, 0.0) / num_drafts
        return min(each * prompt, _MOST_PROMPT * plain.value)

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
