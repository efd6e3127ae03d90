"""gpt-oss: messages in channels. Analysis is reasoning, final is the answer, and a message to a
function is a call."""

import re
from collections.abc import Collection

from outrider.server.protocol.tool_call_parser import AnswerDelta, CallPart, overlap

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")


class HarmonyReader:
    """Reads one message after the other: a header up to its mark, then the text."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._text = ""  # not decided yet
        self._kind = ""  # of the open message: reasoning, content or call; empty in a header
        self._index = -1  # of the last call
        self.has_calls = False

    def push(self, text: str) -> AnswerDelta:
        self._text += text
        return self._read(is_last=False)

    def finish(self) -> AnswerDelta:
        return self._read(is_last=True)

    def _read(self, *, is_last: bool) -> AnswerDelta:
        added: dict[str, str] = {"reasoning": "", "content": ""}
        calls: list[CallPart] = []
        while self._text:
            if not self._kind and not self._open(calls, is_last=is_last):
                break
            if not self._take(added, calls, is_last=is_last):
                break
        return AnswerDelta(
            content=added["content"], calls=tuple(calls), reasoning=added["reasoning"]
        )

    def _open(self, calls: list[CallPart], *, is_last: bool) -> bool:
        """Read a header, if all of it is there. Text without a header is content."""
        header, mark, rest = self._text.partition(_MESSAGE)
        if not mark:
            is_header = self._text.startswith("<|") or "<|".startswith(self._text)
            if is_header and not is_last:
                return False
            self._kind = "content"
            return True
        self._text = rest
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if recipient and recipient[1] in self._names:
            self._index += 1
            self._kind, self.has_calls = "call", True
            calls.append(CallPart(index=self._index, name=recipient[1], arguments=""))
        else:
            self._kind = "reasoning" if channel and channel[1] == "analysis" else "content"
        return True

    def _take(self, added: dict[str, str], calls: list[CallPart], *, is_last: bool) -> bool:
        """Pass on the text of the open message; returns whether the message has ended."""
        found = [(self._text.find(end), end) for end in _ENDS if end in self._text]
        at, end = min(found, default=(len(self._text), ""))
        held = 0 if end or is_last else max(overlap(self._text, mark) for mark in _ENDS)
        text, self._text = self._text[: at - held], self._text[at - held :].removeprefix(end)
        if self._kind != "call":
            added[self._kind] += text
        elif text:
            calls.append(CallPart(index=self._index, name="", arguments=text))
        if end:
            self._kind = ""
        return bool(end)
