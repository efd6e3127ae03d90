"""Reads the calls out of an answer while it grows. However the text is cut into pieces, the parts
add up to the same."""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*"([a-zA-Z0-9_-]+)"\s*,\s*"arguments"\s*:\s*')
_MARK = re.compile(r'["<]')  # outside of a string: where one begins, or maybe the closing tag
_STRING_MARK = re.compile(r'["\\\n]')  # a string of JSON has no newline: one ends a broken string


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPart:
    """What one call gained; the first part of a call has the name, those that follow have none."""

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What a piece of text added to the answer."""

    content: str
    calls: tuple[CallPart, ...]


class AnswerReader(Protocol):
    """Turns text into content and calls. `has_calls` tells after `finish` if one is whole."""

    @property
    def has_calls(self) -> bool: ...
    def push(self, text: str) -> Gain: ...
    def finish(self) -> Gain: ...


class PlainReader:
    """Everything is content."""

    has_calls = False

    def push(self, text: str) -> Gain:
        return Gain(content=text, calls=())

    def finish(self) -> Gain:
        return Gain(content="", calls=())


class ForcedReader:
    """Reads the one call that a grammar made sure of: {"name": ..., "arguments": {...}}.

    The arguments are passed on as they are spelled. What may be the end of the call around them is
    held back until there is more. A text that was cut before the name was known is content.
    """

    def __init__(self) -> None:
        self.has_calls = False
        self._text = ""
        self._sent = 0  # characters whose arguments were passed on; 0 until the name is known

    def push(self, text: str) -> Gain:
        self._text += text
        if self._sent:
            return self._pass_on()
        header = _HEADER.match(self._text)
        if header is None or header.end() == len(self._text):  # more blanks may follow
            return Gain(content="", calls=())
        self._sent = header.end()
        return self._pass_on(header[1])

    def finish(self) -> Gain:
        if not self._sent:
            return Gain(content=self._text, calls=())
        self.has_calls = _is_complete(self._text)
        if self.has_calls:
            return Gain(content="", calls=())
        return self._part("", self._text[self._sent :])

    def _pass_on(self, name: str = "") -> Gain:
        certain = self._text[self._sent :].rstrip().removesuffix("}").rstrip()
        self._sent += len(certain)
        return self._part(name, certain)

    def _part(self, name: str, arguments: str) -> Gain:
        if not name and not arguments:
            return Gain(content="", calls=())
        return Gain(content="", calls=(CallPart(index=0, name=name, arguments=arguments),))


class ToolBlockReader:
    """Reads blocks as Hermes and Qwen write them: <tool_call>{"name", "arguments"}</tool_call>.

    What stands outside of them is content, and so is a block that is no call of a known function.
    Blanks before a block wait for content that follows; around calls they separate nothing.
    """

    def __init__(self, names: Collection[str], *, most: int | None) -> None:
        self._names = frozenset(names)
        self._most = most  # calls; further ones are dropped
        self._text = ""  # not decided yet; begins with the tag when a block is open
        self._blanks = ""
        self._is_open = self._in_string = False
        self._scanned = 0  # characters of an open block that cannot be its end
        self._num_calls = 0
        self._num_content = 0

    @property
    def has_calls(self) -> bool:
        return self._num_calls > 0

    def push(self, text: str) -> Gain:
        self._text += text
        content: list[str] = []
        calls: list[CallPart] = []
        while self._advance(content, calls):
            pass
        return Gain(content="".join(content), calls=tuple(calls))

    def finish(self) -> Gain:
        """What was held back; a last block may lack its closing tag."""
        content: list[str] = []
        calls: list[CallPart] = []
        if self._is_open:
            self._close(self._text, self._text[len(OPEN) :], content, calls)
        else:
            self._write(self._text, content)
        if not self._num_calls:
            content.append(self._blanks)
        self._text = self._blanks = ""
        return Gain(content="".join(content), calls=tuple(calls))

    def _advance(self, content: list[str], calls: list[CallPart]) -> bool:
        """Whether one more thing could be decided."""
        return self._read_block(content, calls) if self._is_open else self._read_content(content)

    def _read_content(self, content: list[str]) -> bool:
        begin = self._text.find(OPEN)
        self._is_open = begin >= 0
        until = begin if self._is_open else len(self._text) - _overlap(self._text)
        self._write(self._text[:until], content)
        self._text = self._text[until:]
        self._scanned, self._in_string = len(OPEN), False
        return self._is_open

    def _read_block(self, content: list[str], calls: list[CallPart]) -> bool:
        if not self._find_end():
            return False
        end = self._scanned + len(CLOSE)
        block, self._text = self._text[:end], self._text[end:]
        self._is_open = False
        self._close(block, block[len(OPEN) : -len(CLOSE)], content, calls)
        return True

    def _find_end(self) -> bool:
        """Move to the closing tag, if it is there; inside of a string it is only text."""
        text = self._text
        while found := (_STRING_MARK if self._in_string else _MARK).search(text, self._scanned):
            self._scanned = found.start()
            mark, rest = found[0], text[found.start() : found.start() + len(CLOSE)]
            if mark == "<" and rest == CLOSE:
                return True
            if rest == "\\" or (mark == "<" and CLOSE.startswith(rest)):
                return False  # the next character decides
            if mark in '"\n':
                self._in_string = not self._in_string
            self._scanned += 2 if mark == "\\" else 1
        self._scanned = len(text)
        return False

    def _close(self, block: str, body: str, content: list[str], calls: list[CallPart]) -> None:
        """Note the call of a block, which is content if there is none."""
        call = _parse_call(body, self._names)
        if call is None:
            self._write(block, content)
        elif self._most is None or self._num_calls < self._most:
            calls.append(CallPart(index=self._num_calls, name=call[0], arguments=call[1]))
            self._num_calls += 1

    def _write(self, text: str, content: list[str]) -> None:
        """Pass text on, but keep the blanks at its end."""
        if not text.strip():
            self._blanks += text
            return
        # Blanks before the first content were about a call, if there was one already.
        is_leading = self._num_calls > 0 and self._num_content == 0
        solid = text.rstrip()
        written = solid.lstrip() if is_leading else self._blanks + solid
        self._blanks = text[len(solid) :]
        self._num_content += len(written)
        content.append(written)


def read_whole(reader: AnswerReader, text: str) -> Gain:
    """All of an answer at once; every call is one part."""
    gains = (reader.push(text), reader.finish())
    calls: list[CallPart] = []
    for part in (part for gain in gains for part in gain.calls):
        if part.name:
            calls.append(part)
        else:
            calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + part.arguments)
    return Gain(content="".join(gain.content for gain in gains), calls=tuple(calls))


def _overlap(text: str) -> int:
    """How many characters at the end may be the beginning of an opening tag."""
    begin = text.rfind("<", max(len(text) - len(OPEN) + 1, 0))
    return len(text) - begin if begin >= 0 and OPEN.startswith(text[begin:]) else 0


def _parse_call(body: str, names: frozenset[str]) -> tuple[str, str] | None:
    """The name and the arguments of a block, or None if it is no call."""
    call = _parse(body)
    if not isinstance(call, dict) or not call.keys() <= {"name", "arguments"}:
        return None
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    return name, _written(arguments)


def _written(arguments: dict[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    # Half a surrogate pair is lawful JSON when escaped, but no Unicode text.
    is_text = not any("\ud800" <= char <= "\udfff" for char in text)
    return text if is_text else json.dumps(arguments)


def _is_complete(text: str) -> bool:
    """Whether this is JSON, with numbers of any size."""
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def _parse(text: str) -> Any:
    """The value of a JSON text, or None."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits} is too large")
    return value
