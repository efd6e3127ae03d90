"""A submitted request: tokens come in step by step, text and records for the user come out."""

import time
from dataclasses import dataclass

from outrider.frontend.output_states import OutputStates
from outrider.frontend.outputs import (
    Acceptance,
    CompletionOutput,
    Logprob,
    RequestOutput,
    StreamDelta,
    Timing,
    Usage,
)
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.detokenizer import Detokenizer, StopStrings, StreamedText
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.wire.adapter import NO_ADAPTER, Adapter
from outrider.wire.draft_budget import Budget
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.failure import NO_FAILURE, RequestFailure
from outrider.wire.hidden_states import RowStatesMode
from outrider.wire.image_span import ImageSpan
from outrider.wire.row_sampling import RowSampling
from outrider.wire.step_result import RoundTrace, TokenLogprobs
from outrider.wire.submission import NOTHING_YET, FinishReason, Limits, RequestUpdate
from outrider.wire.transfer_order import NO_TRANSFER, TransferOrder

_PROMPT_TAIL = 8  # prompt tokens before the output: more than any one character needs


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request that was checked and can be submitted; one `RowSampling` per output."""

    source: TextPrompt | TokenPrompt  # before it was encoded and truncated
    prompt: tuple[int, ...]
    params: SamplingParams
    limits: Limits
    samplings: tuple[RowSampling, ...]
    budget: Budget
    transfer: TransferOrder = NO_TRANSFER
    adapter: Adapter = NO_ADAPTER
    embeds: tuple[EmbeddedSpan, ...] = ()  # in place of tokens of the prompt
    images: tuple[ImageSpan, ...] = ()  # likewise

    @property
    def known_prompt(self) -> tuple[int, ...]:
        """The tokens of the prompt, none where embeddings stand in place of them."""
        return () if self.embeds else self.prompt

    @property
    def image_bytes(self) -> int:
        """Of resized images; each output has its own copy on its way to the engine."""
        return self.params.n * sum(len(image.pixels.values) for image in self.images)

    @property
    def text(self) -> str | None:
        """The text of the prompt, None when the user gave token ids or wants the end of it."""
        is_whole = self.params.truncate_prompt_tokens is None
        return self.source.text if is_whole and isinstance(self.source, TextPrompt) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an output ended, if it did."""

    finish: FinishReason
    stop: int | str | None = None  # the stop id or string, None for other ends, as in vLLM
    failure: RequestFailure = NO_FAILURE


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRules:
    """Which stop ids are reported, and whether their text is shown."""

    named: frozenset[int]  # ids that are reported as the stop reason: the user's own
    is_shown: bool  # whether the text of the stop id is part of the text


class OutputState:
    """Owns the tokens, the text and the ending of one output."""

    def __init__(
        self, text: StreamedText, rules: StopRules, states: RowStatesMode = "none"
    ) -> None:
        self._streamed = text
        self._rules = rules
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []  # when requested
        self.rounds: list[RoundTrace] = []  # when requested; they emitted `token_ids`
        self.hidden_states = OutputStates(states)
        self.text = ""
        self.ends: list[int] = []  # length of the certain text after each token
        self.ending = Ending(finish="running")
        self.progress = NOTHING_YET
        self.queued_s = 0.0  # until it first had a row

    @property
    def matched(self) -> int | str | None:
        """The stop string, or the id that ended the output, end of sequence included."""
        if self.ending.finish != "stop":
            return None
        return self.token_ids[-1] if self.ending.stop is None else self.ending.stop

    @property
    def is_finished(self) -> bool:
        return self.ending.finish != "running"

    def push(self, update: RequestUpdate) -> None:
        """Take the update of one step; tokens after a completed stop string are dropped."""
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
        taken = len(self.token_ids) - before
        self.rounds += [each.cut(taken) for each in update.rounds]
        for states in update.hidden_states:
            self.hidden_states.push(states, num_dropped=len(update.tokens) - taken)
        if update.finish != "running" and not is_complete:
            self._end(update)

    def abort(self) -> None:
        """End the output now; later tokens are dropped."""
        self.text += self._streamed.finish().text
        self.ending = Ending(finish="abort")

    def _write(self, token: int) -> bool:
        """Whether the text of this token completed a stop string, which ends the output."""
        new = self._streamed.push(token)
        self.text += new.text
        if new.matched:
            self.ending = Ending(finish="stop", stop=new.matched)
        return self.is_finished

    def _end(self, update: RequestUpdate) -> None:
        new = self._streamed.finish()
        self.text += new.text
        if new.matched:
            self.ending = Ending(finish="stop", stop=new.matched)
            return
        if update.finish == "error":
            self.ending = Ending(finish="error", failure=update.failure)
            return
        last = self.token_ids[-1] if self.token_ids else -1
        is_named = update.finish == "stop" and last in self._rules.named
        self.ending = Ending(finish=update.finish, stop=last if is_named else None)


class DeltaReader:
    """Owns how far one output has been read."""

    def __init__(self, index: int, output: OutputState) -> None:
        self._index = index
        self._output = output
        self._num_chars = 0
        self.num_tokens = 0
        self._num_rounds = 0
        self._has_ended = False

    @property
    def has_delta(self) -> bool:
        has_tokens = len(self._output.token_ids) > self.num_tokens
        return has_tokens or self._output.is_finished != self._has_ended

    def take(self) -> StreamDelta:
        """The delta of the output since the last call. An error comes alone, after all text."""
        output, finish = self._output, self._output.ending.finish
        is_read = (len(output.text), len(output.token_ids)) == (self._num_chars, self.num_tokens)
        if finish == "error" and not is_read:
            finish = "running"
        delta = StreamDelta(
            index=self._index,
            text=output.text[self._num_chars :],
            token_ids=output.token_ids[self.num_tokens :],
            finish_reason=None if finish == "running" else finish,
            rounds=output.rounds[self._num_rounds :],
        )
        self._num_chars = len(output.text)
        self._num_rounds = len(output.rounds)
        self.num_tokens = len(output.token_ids)
        self._has_ended = finish != "running"
        return delta


class RequestState:
    """Owns the outputs of one submitted request and the times at which they came."""

    def __init__(
        self,
        request_id: str,
        prepared: PreparedRequest,
        tokenizer: Tokenizer | NoTokenizer,
    ) -> None:
        self.request_id = request_id
        self.prepared = prepared
        rules = StopRules(
            named=_named_stop_ids(prepared.params, tokenizer.stop_ids),
            is_shown=prepared.params.include_stop_str_in_output,
        )
        self.outputs = tuple(
            OutputState(
                text_stream(prepared.params, prepared.known_prompt, tokenizer),
                rules,
                sampling.hidden_states,
            )
            for sampling in prepared.samplings
        )
        self._tokenizer = tokenizer
        self._submitted = time.perf_counter()
        self._first = self._last = self._submitted

    @property
    def is_finished(self) -> bool:
        return all(output.is_finished for output in self.outputs)

    @property
    def failure(self) -> RequestFailure:
        """The failure of the first output that failed."""
        failures = (each.ending.failure for each in self.outputs)
        return next((each for each in failures if not each.is_none), NO_FAILURE)

    def push(self, index: int, update: RequestUpdate) -> None:
        """Deliver the update of one output."""
        had_tokens = any(output.token_ids for output in self.outputs)
        self.outputs[index].push(update)
        self._last = time.perf_counter()
        if not had_tokens:
            self._first = self._last

    def output(self) -> RequestOutput:
        """The request as the user sees it, finished or not."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prepared.text,
            prompt_token_ids=[] if self.prepared.embeds else list(self.prepared.prompt),
            outputs=[self._completion(index) for index in range(len(self.outputs))],
            finished=self.is_finished,
            usage=self.usage,
            timing=self.timing,
            prompt_logprobs=self.prompt_logprobs
            if self.prepared.params.prompt_logprobs is not None
            else None,
        )

    @property
    def prompt_logprobs(self) -> list[dict[int, Logprob] | None]:
        """One entry per token of the prompt, as in vLLM: the first has no log-probability."""
        prompt, first = self.prepared.prompt, self.prepared.params.prompt_logprobs_start
        pairs = zip(prompt[first:], self.outputs[0].prompt_logprobs, strict=False)
        scored = [self._position(token, reported) for token, reported in pairs]
        return [*([None] * min(first, len(prompt))), *scored]

    def _completion(self, index: int) -> CompletionOutput:
        output, ending = self.outputs[index], self.outputs[index].ending
        has_logprobs = self.prepared.params.logprobs is not None
        progress = output.progress
        return CompletionOutput(
            index=index,
            text=output.text,
            token_ids=list(output.token_ids),
            cumulative_logprob=_total(output.logprobs) if has_logprobs else None,
            logprobs=self._logprobs(output) if has_logprobs else None,
            finish_reason=None if ending.finish == "running" else ending.finish,
            stop_reason=ending.failure.reason if ending.finish == "error" else ending.stop,
            seed=self.prepared.samplings[index].seed,
            acceptance=Acceptance(
                rounds=progress.rounds,
                drafted=progress.drafted,
                kept_per_position=list(progress.accepted_per_depth),
            ),
            rounds=list(output.rounds),
            hidden_states=output.hidden_states.array() if output.hidden_states.is_wanted else None,
        )

    def _logprobs(self, output: OutputState) -> list[dict[int, Logprob]]:
        pairs = zip(output.token_ids, output.logprobs, strict=True)
        return [self._position(token, reported) for token, reported in pairs]

    def _position(self, token: int, reported: TokenLogprobs) -> dict[int, Logprob]:
        """The chosen token first, then the most likely ones, as vLLM orders them."""
        chosen = self._logprob(token, reported.chosen, reported.rank)
        ranked = {
            other: self._logprob(other, value, rank)
            for rank, (other, value) in enumerate(reported.top, start=1)
        }
        pairs = zip(self.prepared.params.logprob_token_ids or (), reported.named, strict=True)
        named = {other: self._logprob(other, value, 0) for other, value in pairs}
        return {token: chosen} | {
            other: value for other, value in (named | ranked).items() if other != token
        }

    def _logprob(self, token: int, value: float, rank: int) -> Logprob:
        return Logprob(logprob=value, rank=rank, decoded_token=self._tokenizer.token_text(token))

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.prepared.prompt),
            completion_tokens=sum(len(each.token_ids) for each in self.outputs),
            cached_tokens=self.outputs[0].progress.cached,
        )

    @property
    def timing(self) -> Timing:
        num_tokens = sum(len(each.token_ids) for each in self.outputs)
        decode_s = self._last - self._first
        total_s = self._last - self._submitted
        # One step emitted all tokens, so only the whole request can be timed.
        rate = (num_tokens - 1) / decode_s if decode_s else num_tokens / max(total_s, 1e-9)
        return Timing(
            first_token_s=self._first - self._submitted,
            total_s=total_s,
            tokens_per_s=rate,
            preemptions=sum(each.progress.preemptions for each in self.outputs),
        )


def _total(logprobs: list[TokenLogprobs]) -> float:
    return sum(reported.chosen for reported in logprobs)


def text_stream(
    params: SamplingParams, prompt: tuple[int, ...], tokenizer: Tokenizer | NoTokenizer
) -> StreamedText:
    """Turns the tokens of one output after this prompt into text, as the parameters want it."""
    return StreamedText(
        Detokenizer(
            tokenizer if params.detokenize else NoTokenizer(eos_ids=frozenset()),
            skip_special=params.skip_special_tokens,
            prompt_tail=prompt[-_PROMPT_TAIL:],
        ),
        StopStrings(params.stops, include=params.include_stop_str_in_output),
        num_unscanned=params.min_tokens,
    )


def _named_stop_ids(params: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """Ids reported as the stop reason: the user's own, without an ordinary end of sequence."""
    wanted = frozenset(params.stop_token_ids or ())
    return wanted if params.ignore_eos else wanted - eos_ids
