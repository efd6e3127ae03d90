"""A request between its submission and its last token, and the record it becomes."""

import time
from dataclasses import dataclass

from outrider.frontend.outputs import (
    Acceptance,
    CompletionOutput,
    Logprob,
    RequestOutput,
    Timing,
    Usage,
)
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer
from outrider.frontend.transcript import Transcript
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling
from outrider.wire.step_result import TokenLogprobs
from outrider.wire.submission import Limits, RequestUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request that was checked and can be submitted; one sampling law per output."""

    text: str | None  # None when the user gave token ids
    prompt: tuple[int, ...]
    params: SamplingParams
    limits: Limits
    samplings: tuple[RowSampling, ...]
    budget: Budget


class LiveRequest:
    """Owns the outputs of one submitted request and the times at which they came."""

    def __init__(
        self,
        request_id: str,
        prepared: PreparedRequest,
        transcripts: tuple[Transcript, ...],
        tokenizer: Tokenizer | NoTokenizer,
    ) -> None:
        self.request_id = request_id
        self.prepared = prepared
        self.transcripts = transcripts
        self._tokenizer = tokenizer
        self._submitted = time.perf_counter()
        self._first = self._last = self._submitted

    @property
    def is_finished(self) -> bool:
        return all(transcript.is_finished for transcript in self.transcripts)

    @property
    def error(self) -> str:
        """Why the first of the outputs that failed did; empty if none failed."""
        endings = [each.ending for each in self.transcripts]
        return next((str(ending.stop) for ending in endings if ending.finish == "error"), "")

    def push(self, index: int, update: RequestUpdate) -> None:
        """Deliver the news of one output."""
        had_tokens = any(transcript.token_ids for transcript in self.transcripts)
        self.transcripts[index].push(update)
        self._last = time.perf_counter()
        if not had_tokens:
            self._first = self._last

    def output(self) -> RequestOutput:
        """The request as the user sees it, finished or not."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prepared.text,
            prompt_token_ids=list(self.prepared.prompt),
            outputs=[self._completion(index) for index in range(len(self.transcripts))],
            finished=self.is_finished,
            usage=self.usage,
            timing=self.timing,
            prompt_logprobs=self._prompt_logprobs()
            if self.prepared.params.prompt_logprobs is not None
            else None,
        )

    def _prompt_logprobs(self) -> list[dict[int, Logprob] | None]:
        """One entry per token of the prompt, as vLLM has it: nothing is said of the first."""
        prompt, first = self.prepared.prompt, self.prepared.params.prompt_logprobs_start
        pairs = zip(prompt[first:], self.transcripts[0].prompt_logprobs, strict=False)
        scored = [self._position(token, reported) for token, reported in pairs]
        return [*([None] * min(first, len(prompt))), *scored]

    def _completion(self, index: int) -> CompletionOutput:
        transcript, ending = self.transcripts[index], self.transcripts[index].ending
        has_logprobs = self.prepared.params.logprobs is not None
        progress = transcript.progress
        return CompletionOutput(
            index=index,
            text=transcript.text,
            token_ids=list(transcript.token_ids),
            cumulative_logprob=_total(transcript.logprobs) if has_logprobs else None,
            logprobs=self._logprobs(transcript) if has_logprobs else None,
            finish_reason=None if ending.finish == "running" else ending.finish,
            stop_reason=ending.stop,
            seed=self.prepared.samplings[index].seed,
            acceptance=Acceptance(
                rounds=progress.rounds,
                drafted=progress.drafted,
                kept_per_position=list(progress.accepted_per_depth),
            ),
            rounds=list(transcript.rounds),
        )

    def _logprobs(self, transcript: Transcript) -> list[dict[int, Logprob]]:
        pairs = zip(transcript.token_ids, transcript.logprobs, strict=True)
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
            completion_tokens=sum(len(each.token_ids) for each in self.transcripts),
            cached_tokens=self.transcripts[0].progress.cached,
        )

    @property
    def timing(self) -> Timing:
        num_tokens = sum(len(each.token_ids) for each in self.transcripts)
        decode_s = self._last - self._first
        total_s = self._last - self._submitted
        # One step gave everything: all there is to measure is the whole request.
        rate = (num_tokens - 1) / decode_s if decode_s else num_tokens / max(total_s, 1e-9)
        return Timing(
            first_token_s=self._first - self._submitted, total_s=total_s, tokens_per_s=rate
        )


def _total(logprobs: list[TokenLogprobs]) -> float:
    return sum(reported.chosen for reported in logprobs)
