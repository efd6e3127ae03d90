"""One exchange of a step with its matcher processes, and what follows when one of them ends."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.structured.loaded_grammar import LoadedGrammar, MatcherEndedError
from outrider.structured.matcher_messages import NO_ROW, FailedRows, RowTask
from outrider.structured.matcher_process import TOO_SLOW
from outrider.wire.failure import NO_FAILURE, FailureKind, RequestFailure
from outrider.wire.row_sampling import Ban

# CPU seconds that the grammar of one row may take, beside an allowance for each node and token.
# A process whose row takes longer ends. No other request waits longer than this for that row.
MAX_STEP_S = 0.1
MIN_STEP_S = 0.02  # of a row in a step in which several processes had to be ended
MAX_LOST = 2  # processes that end in one step without a row to blame

LOST = RequestFailure(
    FailureKind.TEMPORARY, "the process that matched the grammar ended; send the request again"
)

_numbers = itertools.count(NO_ROW + 1)


class RowGrammar:
    """The grammar of the request that holds a row, and how far its matcher process has come."""

    def __init__(
        self, loaded: LoadedGrammar, *, ends: tuple[int, ...], ban: Ban, output: Sequence[int]
    ) -> None:
        self.number = next(_numbers)  # a row of the device tables may have a new owner
        self.ban = ban
        self.loaded = loaded
        self.failure = NO_FAILURE  # why its request ends
        self._ends = ends
        self._tokens = list(output)
        self._num_sent = 0  # tokens that the process knows
        self._generation = -1  # of the process that knows them
        self._has_emitted = False
        loaded.hold(self.number)

    def note_step(self, *, is_emitting: bool) -> None:
        """Note whether the row emits in a step. A prefill emits nothing for long, but it runs.

        Rows that decode emit in every step. One that does not has ended, or is preempted.
        """
        if is_emitting:
            self.loaded.hold(self.number)
        elif self._has_emitted:
            self.loaded.release(self.number)
        self._has_emitted |= is_emitting

    def emit(self, tokens: Sequence[int]) -> None:
        """Note emitted tokens. They are sent with the next tree."""
        self._tokens += tokens

    def task(self, tokens: list[int], parents: list[int], first: int) -> RowTask:
        """What the process needs to mask a tree. A new process gets all tokens again."""
        is_known = self._generation == self.loaded.generation
        num_sent = self._num_sent if is_known else 0
        self._num_sent, self._generation = len(self._tokens), self.loaded.generation
        return RowTask(
            row=self.number,
            ends=() if is_known else self._ends,
            emitted=self._tokens[num_sent:],
            tokens=tokens,
            parents=parents,
            first=first,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskTask:
    """A tree of one row that gets masks in a step."""

    grammar: RowGrammar
    tokens: list[int]
    parents: list[int]
    positions: list[int]  # in the text
    first: int  # the mask of node 0


class StepMatch:
    """The exchange of one step: begins when it is made, and `wait` ends it.

    A row then has masks in the shared memory, or a failure.
    """

    def __init__(self, tasks: Sequence[MaskTask]) -> None:
        self.tasks = tasks
        groups: dict[LoadedGrammar, list[MaskTask]] = {}
        for task in tasks:
            if task.grammar.failure.is_none:
                groups.setdefault(task.grammar.loaded, []).append(task)
        self._posted = [each for each in groups.items() if _post(*each)]

    def wait(self) -> None:
        for loaded, group in self._posted:
            _collect(loaded, group)


def _post(loaded: LoadedGrammar, group: list[MaskTask], max_s: float = MAX_STEP_S) -> bool:
    """Start to match rows of one grammar; if that fails, all of them fail."""
    try:
        loaded.prepare()
    except (OSError, EOFError):
        _fail(group, LOST)
        return False
    loaded.post([each.grammar.task(each.tokens, each.parents, each.first) for each in group], max_s)
    return True


def _collect(loaded: LoadedGrammar, group: list[MaskTask]) -> None:
    """Wait for masks. While processes end, blame a row for it and match the others again."""
    num_lost, max_s = 0, MAX_STEP_S
    while True:
        try:
            failed = loaded.collect()
        except MatcherEndedError as end:
            failed = {end.row: TOO_SLOW}
            num_lost += end.row not in {each.grammar.number for each in group}
        else:
            _fail_rows(group, failed)
            return
        _fail_rows(group, failed)
        group = [each for each in group if each.grammar.failure.is_none]
        if num_lost >= MAX_LOST:
            _fail(group, LOST)
            return
        max_s = max(max_s / 2, MIN_STEP_S)  # many bad rows together must not hold the others long
        if not group or not _post(loaded, group, max_s):
            return


def _fail_rows(group: list[MaskTask], failed: FailedRows) -> None:
    for each in group:
        each.grammar.failure = failed.get(each.grammar.number, each.grammar.failure)


def _fail(group: list[MaskTask], failure: RequestFailure) -> None:
    for each in group:
        each.grammar.failure = failure
