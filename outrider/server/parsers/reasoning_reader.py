"""Separates reasoning from the answer: the text between <think> and </think> at the begin."""

from dataclasses import dataclass, replace

from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.server.protocol.tool_call_parser import AnswerDelta, AnswerReader, overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningTags:
    """The tags of one family."""

    open: str = "<think>"
    close: str = "</think>"
    is_implied: bool = False  # whether an answer without tags is reasoning

    def is_open(self, prompt: TextPrompt | TokenPrompt) -> bool:
        """Whether the answer to a prompt begins inside reasoning.

        Tags elsewhere in the prompt are what someone wrote: only its end, and the message that the
        answer continues, say where the answer begins.
        """
        if self.is_implied or isinstance(prompt, TokenPrompt):
            return self.is_implied
        begun = prompt.answer_begin
        return begun.rfind(self.open) > begun.rfind(self.close) or (
            prompt.text.rstrip().endswith(self.open)
        )


class ReasoningReader:
    """Passes reasoning on as such, and the text after it to another reader.

    Blanks around the tags belong to neither.
    """

    def __init__(self, tags: ReasoningTags, after: AnswerReader, *, is_open: bool) -> None:
        self._tags = tags
        self._after = after
        self._is_open = is_open
        self._has_begun = self._has_ended = self._has_content = False
        self._is_blank = True  # the reasoning so far
        self._text = ""  # not decided yet

    @property
    def has_calls(self) -> bool:
        return self._after.has_calls

    def push(self, text: str) -> AnswerDelta:
        self._text += text
        if not self._has_begun and not self._begin():
            return AnswerDelta(content="", calls=())
        reasoning = "" if self._has_ended else self._read_reasoning()
        if not self._has_ended:
            return AnswerDelta(content="", calls=(), reasoning=reasoning)
        return replace(self._pass_on(), reasoning=reasoning)

    def finish(self) -> AnswerDelta:
        """The text that was held back."""
        if not self._has_begun:
            self._has_begun, self._has_ended = True, not self._is_open
        reasoning = ""
        if not self._has_ended:
            reasoning, self._text = self._text.rstrip(), ""
        passed = self._pass_on()
        last = self._after.finish()
        return AnswerDelta(
            content=passed.content + last.content,
            calls=(*passed.calls, *last.calls),
            reasoning=reasoning,
        )

    def _begin(self) -> bool:
        """Whether the text is long enough to know if it begins with reasoning."""
        text, tag = self._text.lstrip(), self._tags.open
        if not text or (len(text) < len(tag) and tag.startswith(text)):
            return False
        self._has_begun = True
        if text.startswith(tag):
            self._is_open, self._text = True, text[len(tag) :].lstrip()
        self._has_ended = not self._is_open
        return True

    def _read_reasoning(self) -> str:
        end = self._text.find(self._tags.close)
        self._has_ended = end >= 0
        until = end if self._has_ended else len(self._text) - overlap(self._text, self._tags.close)
        found = self._text[:until].rstrip()
        rest = self._text[until:] if self._has_ended else self._text[len(found) :]
        self._text = rest.removeprefix(self._tags.close) if self._has_ended else rest
        if self._is_blank:
            found = found.lstrip()
            self._is_blank = not found
        return found

    def _pass_on(self) -> AnswerDelta:
        text, self._text = self._text, ""
        if self._is_open and not self._has_content:  # blanks after the closing tag
            text = text.lstrip()
            self._has_content = bool(text)
        return self._after.push(text)
