"""One draft policy for ranks whose steps run together.

All of them run in the shape of the widest. A rank that drafts less than the others saves nothing
and emits less: with a policy each, none would find out that plain decoding is faster.
"""

from dataclasses import dataclass, field

from outrider.engine.draft_policy import DraftPolicy, StepLoad
from outrider.wire.draft_budget import PLAIN_RUNG, Rung

_IDLE = StepLoad(num_rows=0, num_query=0, num_prompt=0)


@dataclass(slots=True)
class _GroupStep:
    """What ranks have told of one step so far."""

    loads: dict[int, StepLoad] = field(default_factory=dict)  # by rank
    emitted: dict[int, float] = field(default_factory=dict)  # tokens of a row, by rank
    seconds: float = 0.0  # of the slowest rank


class GroupPolicy:
    """Owns the policy of the group. It decides once for a step, and learns from whole steps."""

    def __init__(self, policy: DraftPolicy, num_ranks: int) -> None:
        self._policy = policy
        self._latest = [_IDLE] * num_ranks  # loads
        self._decided: tuple[int, Rung] = (-1, PLAIN_RUNG)  # the latest step
        self._steps: dict[int, _GroupStep] = {}  # that not all ranks have told of

    def choose(self, rank: int, step: int, *, num_rows: int, num_prompt: int) -> Rung:
        """The first rank that asks decides for all. It knows what the others ran last."""
        if self._decided[0] != step:
            others = [load for place, load in enumerate(self._latest) if place != rank]
            rung = self._policy.choose(
                step,
                num_rows=max([num_rows, *(load.num_rows for load in others)]),
                num_prompt=max([num_prompt, *(load.num_prompt for load in others)]),
            )
            self._decided = step, rung
        return self._decided[1]

    def settle(self, rank: int, step: int, load: StepLoad) -> None:
        self._latest[rank] = load
        own = self._steps.setdefault(step, _GroupStep())
        own.loads[rank] = load
        if len(own.loads) < len(self._latest):
            return
        whole = StepLoad(
            num_rows=max(each.num_rows for each in self._latest),
            num_query=max(each.num_query for each in self._latest),
            num_prompt=max(each.num_prompt for each in self._latest),
        )
        if whole == _IDLE:  # an empty step has no result
            del self._steps[step]
        self._policy.settle(step, whole)

    def note(self, rank: int, step: int, *, seconds: float, emitted_per_row: float) -> None:
        if step not in self._steps:
            return
        own = self._steps[step]
        own.emitted[rank], own.seconds = emitted_per_row, max(own.seconds, seconds)
        if len(own.emitted) < len(self._latest):
            return
        for failed in [each for each in self._steps if each < step]:
            del self._steps[failed]
        del self._steps[step]
        rows = {place: load.num_rows for place, load in own.loads.items()}
        emitted = sum(rows[place] * tokens for place, tokens in own.emitted.items())
        mean = emitted / sum(rows.values()) if any(rows.values()) else 0.0
        self._policy.note(step, seconds=own.seconds, emitted_per_row=mean)


class MemberPolicy:
    """The policy of one rank."""

    def __init__(self, group: GroupPolicy, rank: int) -> None:
        self._group, self._rank = group, rank

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Rung:
        return self._group.choose(self._rank, step, num_rows=num_rows, num_prompt=num_prompt)

    def settle(self, step: int, load: StepLoad) -> None:
        self._group.settle(self._rank, step, load)

    def note(self, step: int, *, seconds: float, emitted_per_row: float) -> None:
        self._group.note(self._rank, step, seconds=seconds, emitted_per_row=emitted_per_row)
