"""One output while it is written: tokens come in, certain text comes out, and something ends it."""

from dataclasses import dataclass

from outrider.frontend.output_text import OutputText
from outrider.wire.step_result import RoundTrace, TokenLogprobs
from outrider.wire.submission import NOTHING_YET, FinishReason, RequestUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an output ended, if it did."""

    finish: FinishReason
    # The stop id or string, None for other ends, as vLLM has it; of an error, what went wrong.
    stop: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """What to say and show when a stop id ends the output."""

    named: frozenset[int]  # ids that are reported as the stop reason: the user's own
    is_shown: bool  # whether the text of the stop id is part of the text


class Transcript:
    """Owns the tokens, the text and the ending of one output."""

    def __init__(self, writer: OutputText, rules: StopRules) -> None:
        self._writer = writer
        self._rules = rules
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []  # when asked
        self.rounds: list[RoundTrace] = []  # when asked; they emitted `token_ids`
        self.text = ""
        self.ends: list[int] = []  # characters of the text that were certain after each token
        self.ending = Ending(finish="running")
        self.progress = NOTHING_YET
        self.queued_s = 0.0  # until it first had a row

    @property
    def matched(self) -> int | str | None:
        """The stop string, or the id that ended it, end of sequence included."""
        if self.ending.finish != "stop":
            return None
        return self.token_ids[-1] if self.ending.stop is None else self.ending.stop

    @property
    def is_finished(self) -> bool:
        return self.ending.finish != "running"

    def push(self, update: RequestUpdate) -> None:
        """Take the news of one step; tokens after a completed stop string are dropped."""
        assert not self.is_finished, "the front end forgets an output when it ends"
        self.progress, self.queued_s = update.progress, update.queued_s
        self.prompt_logprobs += update.prompt_logprobs
        before, is_complete = len(self.token_ids), False
        for place, token in enumerate(update.tokens):
            self.token_ids.append(token)
            self.logprobs.extend(update.logprobs[place : place + 1])
            is_stop_id = update.finish == "stop" and place == len(update.tokens) - 1
            is_complete = (not is_stop_id or self._rules.is_shown) and self._write(token)
            self.ends.append(len(self.text))
            if is_complete:
                break
        self.rounds += [each.cut(len(self.token_ids) - before) for each in update.rounds]
        if update.finish != "running" and not is_complete:
            self._end(update)

    def abort(self) -> None:
        """End here, because nobody wants the rest."""
        self.text += self._writer.finish().text
        self.ending = Ending(finish="abort")

    def _write(self, token: int) -> bool:
        """Whether the text of this token completed a stop string, which ends the output."""
        scan = self._writer.push(token)
        self.text += scan.text
        if scan.matched:
            self.ending = Ending(finish="stop", stop=scan.matched)
        return self.is_finished

    def _end(self, update: RequestUpdate) -> None:
        scan = self._writer.finish()
        self.text += scan.text
        if scan.matched:
            self.ending = Ending(finish="stop", stop=scan.matched)
            return
        if update.finish == "error":
            self.ending = Ending(finish="error", stop=update.reason)
            return
        last = self.token_ids[-1] if self.token_ids else -1
        is_named = update.finish == "stop" and last in self._rules.named
        self.ending = Ending(finish=update.finish, stop=last if is_named else None)
