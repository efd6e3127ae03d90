"""One request read while it runs."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal

from outrider.frontend.frontend import Frontend
from outrider.frontend.live_request import LiveRequest
from outrider.frontend.outputs import RequestOutput
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.transcript import Transcript
from outrider.wire.step_result import RoundTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDelta:
    """What one output gained since its last delta; the last one says why the output ended."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length", "abort", "error"] | None
    rounds: list[RoundTrace] = field(default_factory=list)  # when asked


class Stream:
    """Iterate for what is new, ask `output` for everything so far, `close` to stop early.

    A stream that is dropped half-way aborts its request.
    """

    def __init__(self, frontend: Frontend, live: LiveRequest) -> None:
        self._live = live
        self._frontend = frontend
        self._deltas = _read(frontend, live)

    def __iter__(self) -> Iterator[StreamDelta]:
        return self._deltas

    def __next__(self) -> StreamDelta:
        return next(self._deltas)

    @property
    def output(self) -> RequestOutput:
        """The request so far; final once the iteration has ended or was closed."""
        return self._live.output()

    def close(self) -> None:
        """Abort the request unless it has ended."""
        self._deltas.close()
        self._frontend.abort(self._live)  # a generator that never began has nothing to close


def open_stream(
    frontend: Frontend, prompt: TextPrompt | TokenPrompt, params: SamplingParams
) -> Stream:
    """Check and submit a request, to be read while it runs."""
    return Stream(frontend, frontend.submit(frontend.prepare(prompt, params)))


def _read(frontend: Frontend, live: LiveRequest) -> Generator[StreamDelta, None, None]:
    readers = [DeltaReader(index, each) for index, each in enumerate(live.transcripts)]
    try:
        # Another reader of the same engine may have stepped it, so ours can end before we look.
        while not live.is_finished or any(reader.has_news for reader in readers):
            yield from [reader.take() for reader in readers if reader.has_news]
            if not live.is_finished:
                frontend.step()
    finally:
        frontend.abort(live)


class DeltaReader:
    """Owns how far one output has been read."""

    def __init__(self, index: int, transcript: Transcript) -> None:
        self._index = index
        self._transcript = transcript
        self._num_chars = 0
        self.num_tokens = 0
        self._num_rounds = 0
        self._has_ended = False

    @property
    def has_news(self) -> bool:
        has_tokens = len(self._transcript.token_ids) > self.num_tokens
        return has_tokens or self._transcript.is_finished != self._has_ended

    def take(self) -> StreamDelta:
        transcript, finish = self._transcript, self._transcript.ending.finish
        delta = StreamDelta(
            index=self._index,
            text=transcript.text[self._num_chars :],
            token_ids=transcript.token_ids[self.num_tokens :],
            finish_reason=None if finish == "running" else finish,
            rounds=transcript.rounds[self._num_rounds :],
        )
        self._num_chars = len(transcript.text)
        self._num_rounds = len(transcript.rounds)
        self.num_tokens = len(transcript.token_ids)
        self._has_ended = transcript.is_finished
        return delta
