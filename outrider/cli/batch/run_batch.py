"""Runs a batch file: reads lines as there is room, and answers each once, in any order."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.cli.batch.batch_input import (
    InputLine,
    LineRequest,
    decode_line,
    parse_line,
    read_lines,
)
from outrider.cli.batch.batch_output import BatchOutput
from outrider.cli.batch.openai_lines import OpenAiLine, is_openai_line, refusal_report
from outrider.errors import CapacityError, ConfigError, RequestError
from outrider.frontend.batch_bar import Advance, batch_bar
from outrider.frontend.frontend import Frontend
from outrider.frontend.output_json import describe_output
from outrider.frontend.prompts import (
    Message,
    TextPrompt,
    TokenPrompt,
    is_conversation,
    parse_prompt,
)
from outrider.frontend.request_feed import Feed
from outrider.frontend.request_state import PreparedRequest, RequestState
from outrider.frontend.sampling_params import SamplingParams, override
from outrider.wire.adapter import NO_ADAPTER, Adapter

Framing = Callable[[str], TextPrompt]  # turns the text of a user into a prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDefaults:
    """Settings of every line that does not override them."""

    params: SamplingParams
    framing: Framing
    max_in_flight: int
    adapter: Adapter = NO_ADAPTER
    system: str = ""  # for conversations without a system message; `framing` adds it to texts


class BatchRun:
    """Owns one run from an input file to an output file."""

    def __init__(self, frontend: Frontend, defaults: BatchDefaults, written: BatchOutput) -> None:
        self._frontend = frontend
        self._defaults = defaults
        self._written = written
        # Why lines are left to the next run: there was no room, or a step failed.
        self.refusals: list[str] = []

    def run(self, source: Path, advance: Advance) -> None:
        """Answer every line that is not answered yet; a bad line gets its error as the answer."""
        feed = Feed(
            self._frontend,
            self._requests(source, advance),
            max_in_flight=self._defaults.max_in_flight,
        )
        for line, result in feed:
            if isinstance(result, CapacityError):
                self.refusals.append(str(result))
                continue
            if not isinstance(result, RequestState):
                self._fail(line, result, advance)
                continue
            if result.failure.is_temporary:
                self.refusals.append(result.failure.reason)
                continue
            self._written.append(line, self._report(line, result))
            advance(result.usage.completion_tokens)

    def _requests(
        self, source: Path, advance: Advance
    ) -> Iterator[tuple[InputLine, PreparedRequest]]:
        for line in read_lines(source):
            if self._written.is_done(line):
                continue
            try:
                yield line, self._prepare(line)
            except RequestError as error:
                self._fail(line, error, advance)

    def _report(self, line: InputLine, request: RequestState) -> Mapping[str, Any]:
        value = decode_line(line)
        if not is_openai_line(value):
            return describe_output(request.output())
        return OpenAiLine(value).report(request, self._frontend)

    def _prepare(self, line: InputLine) -> PreparedRequest:
        value = decode_line(line)
        if is_openai_line(value):
            line_request = OpenAiLine(value)
            return line_request.prepare(
                self._frontend, self._defaults.params, self._defaults.adapter
            )
        request = parse_line(line)
        params = override(self._defaults.params, request.changes)
        prompt, adapter = self._prompt(request), self._defaults.adapter
        return self._frontend.inputs.prepare(prompt, params, adapter)

    def _prompt(self, request: LineRequest) -> TextPrompt | TokenPrompt:
        if request.kind == "prompt":
            return self._defaults.framing(request.body)
        if request.kind == "messages":
            return self._frontend.inputs.render(_with_system(request.body, self._defaults.system))
        return parse_prompt({request.kind: request.body})

    def _fail(self, line: InputLine, error: RequestError, advance: Advance) -> None:
        self._written.append(line, _refusal(line, str(error)))
        advance(0)


def _refusal(line: InputLine, message: str) -> Mapping[str, Any]:
    try:
        value = decode_line(line)
    except RequestError:
        value = None
    return refusal_report(value, message) if is_openai_line(value) else {"error": message}


def _with_system(messages: Sequence[Message], system: str) -> Sequence[Message]:
    """The conversation with a system message. The template refuses what is no conversation."""
    if not system or not is_conversation(messages):
        return messages
    if any(isinstance(each, Mapping) and each.get("role") == "system" for each in messages):
        return messages
    return [{"role": "system", "content": system}, *messages]


def count_lines(source: Path, written: BatchOutput) -> int:
    """How many lines the input has; refuses an input that lacks lines answered before."""
    total = num_done = 0
    for line in read_lines(source):
        total += 1
        num_done += written.is_done(line)
    if num_done < len(written.done):
        raise ConfigError(
            f"{source} lacks lines that are answered already; use another --output, "
            "or delete it to start again"
        )
    return total


def answer_file(frontend: Frontend, files: tuple[Path, ...], defaults: BatchDefaults) -> bool:
    """Answer the lines of a file that have no answer yet; returns whether all have one now."""
    source, target = files
    with BatchOutput(target) as written:
        total, num_done = count_lines(source, written), len(written.done)
        batch = BatchRun(frontend, defaults, written)
        with batch_bar(total, done=num_done) as advance:
            batch.run(source, advance)
    facts = [f"{num_done} from before", f"{written.num_failed} failed"]
    if batch.refusals:
        facts.append(f"{len(batch.refusals)} left to the next run ({batch.refusals[0]})")
    print(f"{total} lines in {target}: {', '.join(facts)}", file=sys.stderr)
    return not written.num_failed and not batch.refusals
