"""Finds the tool calls in an answer while it grows. The result does not depend on how the text is
cut into deltas."""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from outrider.server.parsers.call_block import CallFormat
from outrider.server.parsers.hermes_calls import HERMES

_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*"([a-zA-Z0-9_-]+)"\s*,\s*"arguments"\s*:\s*')
_MARK = re.compile(r'["<]')  # outside of a string: the begin of one, or of the closing tag
_STRING_MARK = re.compile(r'["\\\n]')  # a newline ends a broken string: JSON strings have none


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPart:
    """A new part of one call. The first part has the name; in later parts the name is empty."""

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDelta:
    """The content, the calls and the reasoning that a delta of text added."""

    content: str
    calls: tuple[CallPart, ...]
    reasoning: str = ""


class AnswerReader(Protocol):
    """Splits text into content and calls. After `finish`, `has_calls` says if there is a call."""

    @property
    def has_calls(self) -> bool: ...
    def push(self, text: str) -> AnswerDelta: ...
    def finish(self) -> AnswerDelta: ...


class PlainReader:
    """Everything is content."""

    has_calls = False

    def push(self, text: str) -> AnswerDelta:
        return AnswerDelta(content=text, calls=())

    def finish(self) -> AnswerDelta:
        return AnswerDelta(content="", calls=())


class ForcedReader:
    """Reads the one call that a grammar enforces: {"name": ..., "arguments": {...}}.

    The arguments are passed on as they are written. Text that may be the end of the call around
    them is held back until more text comes. Text that ends before the name is complete is content.
    """

    def __init__(self) -> None:
        self.has_calls = False
        self._text = ""
        self._sent = 0  # characters that were passed on; 0 until the name is known

    def push(self, text: str) -> AnswerDelta:
        self._text += text
        if self._sent:
            return self._pass_on()
        header = _HEADER.match(self._text)
        if header is None or header.end() == len(self._text):  # more blanks may follow
            return AnswerDelta(content="", calls=())
        self._sent = header.end()
        return self._pass_on(header[1])

    def finish(self) -> AnswerDelta:
        if not self._sent:
            return AnswerDelta(content=self._text, calls=())
        self.has_calls = _is_complete(self._text)
        if self.has_calls:
            return AnswerDelta(content="", calls=())
        return self._part("", self._text[self._sent :])

    def _pass_on(self, name: str = "") -> AnswerDelta:
        certain = self._text[self._sent :].rstrip().removesuffix("}").rstrip()
        self._sent += len(certain)
        return self._part(name, certain)

    def _part(self, name: str, arguments: str) -> AnswerDelta:
        if not name and not arguments:
            return AnswerDelta(content="", calls=())
        return AnswerDelta(content="", calls=(CallPart(index=0, name=name, arguments=arguments),))


class ToolBlockReader:
    """Reads the blocks of a format, by default those of Hermes and Qwen.

    Text outside of blocks is content, and so is a block that calls no known function. Blanks
    before a block are held back until content follows; next to calls they are dropped.
    """

    def __init__(
        self, names: Collection[str], *, most: int | None, format: CallFormat = HERMES
    ) -> None:
        self._names = frozenset(names)
        self._format = format
        self._most = most  # calls that are passed on; the others are dropped
        self._text = ""  # not decided yet; begins with the tag while a block is open
        self._blanks = ""
        self._is_open = self._in_string = False
        self._scanned = 0  # characters of an open block that are not its end
        self._num_calls = 0
        self._num_content = 0

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def push(self, text: str) -> AnswerDelta:
        self._text += text
        content: list[str] = []
        calls: list[CallPart] = []
        while self._advance(content, calls):
            pass
        return AnswerDelta(content="".join(content), calls=tuple(calls))

    def finish(self) -> AnswerDelta:
        """The text that was held back. The last block may lack its closing tag."""
        content: list[str] = []
        calls: list[CallPart] = []
        if self._is_open:
            self._close(self._text, content, calls)
        else:
            self._write(self._text, content)
        if not self._num_calls:
            content.append(self._blanks)
        self._text = self._blanks = ""
        return AnswerDelta(content="".join(content), calls=tuple(calls))

    def _advance(self, content: list[str], calls: list[CallPart]) -> bool:
        """Read one block, or the text before one; returns whether that was possible."""
        return self._read_block(content, calls) if self._is_open else self._read_content(content)

    def _read_content(self, content: list[str]) -> bool:
        begin, mark = self._find_open()
        self._is_open = bool(mark)
        held = 0 if mark else self._num_held()
        until = begin if mark else len(self._text) - held
        self._write(self._text[:until], content)
        self._text = self._text[until:]
        self._scanned, self._in_string = len(mark), False
        return self._is_open

    def _find_open(self) -> tuple[int, str]:
        """Where the first block begins, and its mark; no mark if there is none."""
        if self._format.is_leading and (self._num_content or self._num_calls):
            return 0, ""
        text, marks = self._text, self._format.opens
        begin = len(text) - len(text.lstrip())
        if self._format.is_leading:
            return begin, next((mark for mark in marks if text.startswith(mark, begin)), "")
        found = [(text.find(mark), mark) for mark in marks if mark in text]
        return min(found, default=(0, ""))

    def _num_held(self) -> int:
        """How many characters at the end may be the begin of a mark."""
        if not self._format.is_leading:
            return max(overlap(self._text, mark) for mark in self._format.opens)
        text = self._text.lstrip()
        is_held = not self._num_content and any(
            mark.startswith(text) for mark in self._format.opens
        )
        return len(text) if is_held else 0

    def _read_block(self, content: list[str], calls: list[CallPart]) -> bool:
        if not self._format.close or not self._find_end():
            return False
        end = self._scanned + len(self._format.close)
        block, self._text = self._text[:end], self._text[end:]
        self._is_open = False
        self._close(block, content, calls)
        return True

    def _find_end(self) -> bool:
        """Move to the closing tag, if there is one. A tag inside a JSON string is text."""
        text, close = self._text, self._format.close
        if not self._format.has_strings:
            at = text.find(close, self._scanned)
            self._scanned = at if at >= 0 else max(self._scanned, len(text) - len(close) + 1)
            return at >= 0
        while found := (_STRING_MARK if self._in_string else _MARK).search(text, self._scanned):
            self._scanned = found.start()
            mark, rest = found[0], text[found.start() : found.start() + len(close)]
            if mark == "<" and rest == close:
                return True
            if rest == "\\" or (mark == "<" and close.startswith(rest)):
                return False  # the next character decides
            if mark in '"\n':
                self._in_string = not self._in_string
            self._scanned += 2 if mark == "\\" else 1
        self._scanned = len(text)
        return False

    def _close(self, block: str, content: list[str], calls: list[CallPart]) -> None:
        """Add the calls of a block, or the block as content if it calls no known function."""
        found = self._format.parse(block)
        if found is None or any(name not in self._names for name, _ in found):
            self._write(block, content)
            return
        for name, arguments in found:
            if self._most is None or self._num_calls < self._most:
                calls.append(CallPart(index=self._num_calls, name=name, arguments=arguments))
                self._num_calls += 1

    def _write(self, text: str, content: list[str]) -> None:
        """Pass text on, but hold back the blanks at its end."""
        if not text.strip():
            self._blanks += text
            return
        # Blanks between a call and the first content are dropped.
        is_leading = self._num_calls > 0 and self._num_content == 0
        solid = text.rstrip()
        written = solid.lstrip() if is_leading else self._blanks + solid
        self._blanks = text[len(solid) :]
        self._num_content += len(written)
        content.append(written)


def read_whole(reader: AnswerReader, text: str) -> AnswerDelta:
    """A complete answer; every call is one part."""
    deltas = (reader.push(text), reader.finish())
    calls: list[CallPart] = []
    for part in (part for delta in deltas for part in delta.calls):
        if part.name:
            calls.append(part)
        else:
            calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + part.arguments)
    return AnswerDelta(
        content="".join(delta.content for delta in deltas),
        calls=tuple(calls),
        reasoning="".join(delta.reasoning for delta in deltas),
    )


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of a text may be the begin of a mark."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)


def _is_complete(text: str) -> bool:
    """Whether this is valid JSON, with numbers of any size."""
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True
