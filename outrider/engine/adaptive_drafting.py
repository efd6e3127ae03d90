"""How far a batch drafts, from measured step times and measured acceptance.

Verifying drafts is free while a step is bound by reading weights, and costs time once there are
many query tokens. The border depends on the machine, the model, the number of rows, the prompt
tokens beside them and the text. So it is measured: a batch size changes its rung (budget) only
after a trial of the other rung.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.engine.draft_trials import (
    DRAFT_WAIT,
    FIRST_STEPS,
    IMPOSSIBLE,
    LONGEST_TRIAL,
    PLAIN_WAIT,
    TRIAL_ROUNDS,
    BatchSize,
    MovingMean,
    Trial,
    accept_rate_of,
    could_pay,
    emitted_at,
)
from outrider.engine.rung_prices import RungPrices
from outrider.wire.draft_budget import FEWEST_SHARING, Budget, Rung, ladder_of
from outrider.wire.runner_facts import RungCost

_FREE_TOKENS = 8  # query tokens that a step reads at about the price of one, on most machines
_FREE_SHARE = 0.5  # of a plain step: what drafts may add to it at most and still be called free
_FIRST_PLAIN = 2  # plain steps of a small batch that show whether drafts are free
_WORTH_STARTING = 1.5  # gain from which a small batch begins with drafts
_TRIAL_STEPS = 3
_MOST_SLOW = 2  # steps that end a trial of drafts
_MOST_UNEXPLAINED = 2.0  # times the price: a prompt token costs less than one of many short rows
_EXPECTED_ROUNDS = 16  # that an estimate from another rung counts for
_LEAST_GAIN = 1.03  # a smaller gain is not worth new shapes
_PLAIN_GAIN = 0.98  # plain decoding is chosen unless drafts gain more than the rest
_MOST_LOST = 0.015  # share of all time that trials of drafts may cost batches that decode plainly
_MOST_PLAIN = 0.01  # the same of trials of plain decoding in batches that draft
_MOST_GUESSED = 32  # steps of drafts before plain ones are measured, whatever dummy runs said
_KEPT = 1 - 1 / 8192  # of that time, step by step: a quiet day is no credit for a bad hour
_UNKNOWN_WAIT = 32.0  # steps with prompts before drafts are tried, if no step had none
_MOST_PROMPT = 0.95  # largest share of a step that is attributed to its prompts
_LEAST_SECONDS = 1e-9  # of a step that took no time by the clock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A step in flight."""

    rung: int
    trial: Trial | None  # that the step belongs to
    num_rows: int
    num_prompt: int


class Adaptation:
    """Owns the measurements. Its ladder of budgets goes from plain decoding to the whole budget."""

    def __init__(
        self, budget: Budget, *, is_shared: bool = False, costs: Sequence[RungCost] = ()
    ) -> None:
        self.ladder = ladder_of(budget, is_shared=False)
        self._prices = RungPrices(costs)
        self._shared = ladder_of(budget, is_shared=is_shared)  # as many nodes, of larger trees
        self._sizes: dict[tuple[int, int], BatchSize] = {}  # by octaves of rows and prompt tokens
        self._gains = [MovingMean() for _ in self.ladder]  # tokens a round emits, by rung
        self._spent_s = 0.0  # by recent steps
        self._lost_s, self._plain_lost_s = 0.0, 0.0  # of it, to trials of drafts and of none
        # Of steps that are being scheduled: their rungs, and the trials that they belong to.
        self._rungs: dict[int, tuple[int, Trial | None]] = {}
        self._steps: dict[int, _Step] = {}  # of those in flight

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Rung:
        size = self._like(num_rows, num_prompt)
        if size.is_undecided and size.costs[0].num >= _FIRST_PLAIN:
            self._begin(size, num_rows)
        calm = self._calm(num_rows) if num_prompt else None
        if calm and calm is not size:
            size.follow(calm.chosen)
        if size.trial:
            self._judge(size, size.trial)
        elif size.is_known and size.num_steps >= self._num_first(size):
            self._try_another(size, self._wait_beside_prompts(size, num_rows, num_prompt))
        trial = size.trial
        if trial:
            num_wanted = self._num_wanted(size, trial.rung)
            if not trial.wants_step(num_wanted, is_careful=trial.rung > size.chosen):
                trial = None
        rung = trial.rung if trial else size.chosen
        size.num_steps += 1
        self._rungs[step] = rung, trial
        return (self.ladder if num_rows < FEWEST_SHARING else self._shared)[rung]

    def settle(self, step: int, *, num_rows: int, num_prompt: int) -> None:
        is_chosen = step in self._rungs
        rung, trial = self._rungs.pop(step, (0, None))
        if is_chosen if num_rows else num_prompt:  # an empty step has no result
            self._steps[step] = _Step(
                rung=rung, trial=trial, num_rows=num_rows, num_prompt=num_prompt
            )
        if trial and num_rows:
            trial.num_in_flight += 1

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        self._steps = {
            one: each for one, each in self._steps.items() if one >= step
        }  # earlier ones failed
        if step not in self._steps:
            return
        was = self._steps.pop(step)
        if not was.num_rows:
            self._prices.note_prompts(seconds, num_prompt=was.num_prompt)
            return
        if was.trial:
            was.trial.num_in_flight -= 1
        size = self._size_of(was.num_rows, was.num_prompt)
        seconds = self._at_usual_prompt(was, seconds)
        self._count_loss(size, was, seconds, emitted_per_row)
        size.note(was.rung, seconds, num_rows=was.num_rows, num_prompt=was.num_prompt)
        self._gains[was.rung].note(emitted_per_row, was.num_rows)

    def _at_usual_prompt(self, step: _Step, seconds: float) -> float:
        """Seconds that a step would take with the middle of its octave of prompt tokens.

        Prompts of one octave differ by a factor of two, and most of the step may be theirs.
        """
        calm = self._calm(step.num_rows) if step.num_prompt else None
        if calm is None or not calm.costs[0].is_known:
            return seconds
        num_prompt, plain_s = step.num_prompt, calm.costs[0].usual
        if step.rung == 0:
            self._prices.note_beside(seconds, plain_s=plain_s, num_prompt=num_prompt)
        middle = 0.75 * (1 << num_prompt.bit_length())
        return max(seconds + self._prices.more_prompt_s(middle - num_prompt), _LEAST_SECONDS)

    @property
    def trial_credit_s(self) -> float:
        """Seconds that trials of drafts may still cost batches that decode plainly."""
        return _MOST_LOST * self._spent_s - self._lost_s

    def _count_loss(
        self, size: BatchSize, step: _Step, seconds: float, emitted_per_row: float
    ) -> None:
        """Add up what trials cost more than the chosen rung would have for as many tokens."""
        self._spent_s = _KEPT * self._spent_s + seconds
        self._lost_s *= _KEPT
        self._plain_lost_s *= _KEPT
        plain_s = size.costs[0].usual
        if step.trial and not step.rung and size.is_known:
            seen_s = min(seconds, IMPOSSIBLE * size.costs[size.chosen].usual)
            self._plain_lost_s += max(self._net(size, seen_s) - 1 / self._chosen_rate(size), 0.0)
        if step.trial and step.rung and size.chosen == 0 and size.costs[0].is_known:
            gained_s = (emitted_per_row - 1) * self._net(size, plain_s)
            lost_s = min(seconds, step.trial.most_s) - plain_s - gained_s
            self._lost_s = max(self._lost_s + lost_s, 0.0)

    def _wait_beside_prompts(self, size: BatchSize, num_rows: int, num_prompt: int) -> float:
        """Steps of a size with prompts before it tries drafts, while plain decoding is chosen.

        Prompts make drafts dearer. Where drafts lose without prompts, a size with prompts waits as
        long as the size without them.
        """
        if not num_prompt:
            return 0.0
        calm = self._calm(num_rows)
        if calm is None:
            return _UNKNOWN_WAIT
        return calm.waits[1] if calm.chosen == 0 and calm is not size else 0.0

    def _try_another(self, size: BatchSize, least_steps: float) -> None:
        """Begin the trial that is due and promises most, if there is one.

        Plain decoding is tried when it is due, and so is the smallest rung of drafts while plain
        decoding is chosen: the text may have changed. Other rungs must promise a gain.
        Drafts are not tried in place of plain decoding before `least_steps`.
        """
        now, tried, most = size.num_steps, size.chosen, -1.0
        for rung, due in enumerate(size.due):
            if rung == size.chosen or now < due or (size.chosen == 0 and now < least_steps):
                continue
            if not self._is_affordable(size, rung):
                continue
            is_next = rung == 0 or rung == size.chosen + 1 == 1
            is_measured = size.chosen > 0 or size.costs[1].is_known or self._prices.are_measured
            promise = self._promise(size, rung) if is_next or is_measured else 0.0
            if not is_next and promise < _LEAST_GAIN:
                size.due[rung] = now + PLAIN_WAIT
            elif promise > most:
                tried, most = rung, promise
        if tried != size.chosen:
            self._gains[tried].fade()
            nodes = self.ladder[tried].nodes / self.ladder[size.chosen].nodes
            most_s = IMPOSSIBLE * max(nodes, 1.0) * size.costs[size.chosen].usual
            size.begin_trial(tried, most_s=most_s)

    def _is_affordable(self, size: BatchSize, rung: int) -> bool:
        """Whether the time that trials may cost has room for one more of this rung."""
        if size.chosen == 0:
            return self.trial_credit_s >= self._needed_credit_s(size, rung)
        plain_s = self._prices.expected_s(size, self.ladder, 0)
        is_due = not size.costs[0].is_known and size.num_steps >= _MOST_GUESSED
        if rung or not plain_s or is_due:
            return True
        lost_s = self._net(size, plain_s) - 1 / self._chosen_rate(size)
        left_s = _MOST_PLAIN * self._spent_s - self._plain_lost_s
        return left_s >= lost_s * self._num_wanted(size, 0)

    def _needed_credit_s(self, size: BatchSize, rung: int) -> float:
        """What trials of drafts may still cost when one of this rung begins.

        Where drafts do not pay, a trial takes about half of its steps to show that. So drafts that
        are not free are tried when there is time for these.
        """
        plain_s, cost, prices = size.costs[0].usual, size.costs[rung], self._prices
        drafts_s = self._drafts_s(size.rows.value, rung, plain_s)
        loss_s = cost.usual - plain_s if cost.is_known else drafts_s
        is_free = loss_s <= _FREE_SHARE * plain_s
        if prices.are_measured and not cost.is_known:
            is_free = prices.are_promising(self.ladder[rung], size.num_rows)
        return 0.0 if is_free else loss_s * self._num_wanted(size, rung) / 2

    def _drafts_s(self, num_rows: float, rung: int, plain_s: float) -> float:
        """Seconds that the drafts of a rung should add to a plain step."""
        return self._prices.drafts_s(num_rows, self.ladder[rung].drafts, plain_s=plain_s)

    def _num_first(self, size: BatchSize) -> int:
        """Steps before the first trial of a size. Dummy runs have shown what plain ones cost."""
        if self._prices.are_measured and size.chosen == 0:
            return 1
        return max(FIRST_STEPS, self._num_wanted(size, size.chosen))

    def _num_wanted(self, size: BatchSize, rung: int) -> int:
        """Samples of a trial. The gain of drafts varies more than the cost of a step."""
        rounds = TRIAL_ROUNDS if rung else 0
        return max(_TRIAL_STEPS, math.ceil(rounds / max(size.rows.value, 1.0)))

    def _judge(self, size: BatchSize, trial: Trial) -> None:
        """End a trial that has enough samples, or whose steps cost more than drafts can gain."""
        rung, samples = trial.rung, trial.num_samples
        is_complete = samples >= self._num_wanted(size, rung)
        now = self._chosen_rate(size)
        most = self._likely_gain(rung) / self._net(size, trial.seconds.usual)
        is_hopeless = rung > size.chosen and samples > 0 and most < now
        is_hopeless |= trial.num_slow >= _MOST_SLOW
        is_hopeless |= self._is_unpaid(size, trial)
        is_new = size.num_steps - trial.since < LONGEST_TRIAL
        if is_new and not is_complete and not is_hopeless:
            return
        size.end_trial(trial, is_complete=is_complete)
        least = _LEAST_GAIN if rung else _PLAIN_GAIN
        if not size.is_known:
            size.due[rung] = size.num_steps + FIRST_STEPS  # after the chosen rung is measured
        elif is_complete and self._rate(size, rung, trial.seconds.usual) > least * now:
            size.adopt(rung)
        else:
            is_usual = self._is_usual(size, trial)
            size.wait(rung, is_sure=is_complete or is_usual)
            if is_usual and not could_pay(self.ladder, trial, size.costs[0].usual):
                size.wait_long(rung)

    def _is_unpaid(self, size: BatchSize, trial: Trial) -> bool:
        """Whether a trial of drafts that are not free lost more than trials may."""
        if size.chosen or not trial.num_samples or self.trial_credit_s >= 0:
            return False
        return trial.seconds.usual > (1 + _FREE_SHARE) * size.costs[0].usual

    def _is_usual(self, size: BatchSize, trial: Trial) -> bool:
        """Whether known prices explain what drafts cost more than plain decoding."""
        plain_s = size.costs[0].usual
        drafts_s = self._drafts_s(size.rows.value, trial.rung, plain_s)
        is_from_plain = size.chosen == 0 and trial.num_samples > 0 and drafts_s > 0
        return is_from_plain and trial.seconds.usual < _MOST_UNEXPLAINED * (plain_s + drafts_s)

    def _like(self, num_rows: int, num_prompt: int) -> BatchSize:
        """The measurements of this batch size, or of the nearest size while there are none."""
        size = self._size_of(num_rows, num_prompt)
        return size if size.is_known else self._neighbour(num_rows, num_prompt) or size

    def _size_of(self, num_rows: int, num_prompt: int) -> BatchSize:
        octaves = (num_rows.bit_length(), num_prompt.bit_length())
        if octaves not in self._sizes:
            near = self._neighbour(num_rows, num_prompt)
            most = max(self._most_gain(rung) for rung in range(len(self.ladder)))
            wait = min(FIRST_STEPS / max(most - 1, 1e-9), DRAFT_WAIT)
            free = self._cautious(num_rows)
            is_priced = not self._prices.are_measured and self._prices.query_token_s > 0
            is_undecided = near is None and free > 0 and is_priced
            size = self._sizes[octaves] = BatchSize(
                len(self.ladder),
                chosen=near.chosen if near else 0 if is_undecided else free,
                first_trial=max(max(near.waits) / 16 if near else 0.0, wait),
                is_undecided=is_undecided,
            )
            if not self._prices.can_pay(self.ladder, num_rows, least_gain=_LEAST_GAIN):
                size.postpone_drafts()
        return self._sizes[octaves]

    def _begin(self, size: BatchSize, num_rows: int) -> None:
        """Begin with drafts if they are free by the price of a prompt token."""
        size.is_undecided = False
        free = self._cautious(num_rows)
        plain_s = size.costs[0].usual - self._prices.query_token_s * size.prompt.value
        if self._drafts_s(num_rows, free, plain_s) <= _FREE_SHARE * plain_s:
            size.chosen = free

    def _cautious(self, num_rows: int) -> int:
        """The rung of a batch about which nothing is known: drafts that should be free, or none."""
        free = [
            rung
            for rung, budget in enumerate(self.ladder)
            if num_rows * budget.nodes <= _FREE_TOKENS and self._most_gain(rung) > _WORTH_STARTING
        ]
        return self._prices.choose_first(self.ladder, free, num_rows)

    def _neighbour(self, num_rows: int, num_prompt: int) -> BatchSize | None:
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

    def _calm(self, num_rows: int) -> BatchSize | None:
        """The measured size without prompts of as many rows, or of twice as many: while a row reads
        its prompt, fewer rows decode.
        """
        rows = num_rows.bit_length()
        sizes = (self._sizes.get((each, 0)) for each in (rows, rows + 1))
        return next((size for size in sizes if size and size.is_known), None)

    def _promise(self, size: BatchSize, rung: int) -> float:
        """The most that a rung can gain over the chosen one, as far as is known."""
        seconds = self._prices.expected_s(size, self.ladder, rung)
        if not seconds:
            return math.inf
        is_below = rung < size.chosen
        gain = self._gain(size.chosen, rung) if is_below else self._most_gain(rung, size.chosen)
        return gain / self._net(size, seconds) / self._chosen_rate(size)

    def _most_gain(self, rung: int, chosen: int = 0) -> float:
        """What a round can emit: deeper drafts are accepted at most as often as those measured, by
        the chosen rung if it drafts.
        """
        most = self.ladder[rung].most_emitted
        known = [each for each in range(1, (chosen or rung) + 1) if self._gains[each].num]
        if not known or rung == 0:
            return float(most)
        gain, steps = self._gains[known[-1]], self.ladder[known[-1]].most_emitted - 1
        return min(1 + (gain.value - 1 + 1 / gain.num) * (most - 1) / steps, most)

    def _likely_gain(self, rung: int) -> float:
        """What a round of a rung emits at most, two standard errors above its mean."""
        gain, most = self._gains[rung], self.ladder[rung].most_emitted
        if rung == 0 or not gain.num:
            return float(most)
        variance = (most - 1) * max(gain.value - 1, 1 / gain.num)
        return min(gain.value + 2 * math.sqrt(variance / gain.num), most)

    def _rate(self, size: BatchSize, rung: int, seconds: float) -> float:
        """Tokens per second and row."""
        return self._gain(size.chosen, rung) / self._net(size, seconds)

    def _chosen_rate(self, size: BatchSize) -> float:
        return self._rate(size, size.chosen, size.costs[size.chosen].usual)

    def _gain(self, chosen: int, rung: int) -> float:
        """Tokens that a round of a rung emits. The chosen rung helps to estimate it while the rung
        itself has few samples.
        """
        own = self._gains[rung]
        if rung == 0 or chosen in (0, rung):
            return own.value if rung else 1.0
        rate = accept_rate_of(self._gains[chosen].value, self.ladder[chosen].most_emitted)
        expected = emitted_at(rate, self.ladder[rung].most_emitted)
        return (own.value * own.num + expected * _EXPECTED_ROUNDS) / (own.num + _EXPECTED_ROUNDS)

    def _net(self, size: BatchSize, seconds: float) -> float:
        """Seconds of a step without those that its prompt tokens cost, each at the price of a draft
        token.

        Without drafts the prompts would be read too, in other steps, so their time must not make
        any rung look better.
        """
        plain, prompt = size.costs[0], size.prompt.value
        top = max((rung for rung, cost in enumerate(size.costs) if cost.is_known), default=0)
        if not (prompt and plain.is_known and top):
            return max(seconds, _LEAST_SECONDS)
        num_drafts = size.rows.value * (self.ladder[top].nodes - 1)
        each = max(size.costs[top].usual - plain.usual, 0.0) / num_drafts
        prompt_s = min(each * prompt, _MOST_PROMPT * plain.usual)
        return max(seconds - prompt_s, _LEAST_SECONDS)
