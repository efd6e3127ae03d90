"""The history of one chat, kept within the model's context."""

from dataclasses import dataclass

from outrider.errors import ConfigError, RequestError
from outrider.frontend.frontend import Frontend
from outrider.frontend.prompts import Message, TextPrompt
from outrider.frontend.tokenizer.chat_template import NoChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuestion:
    """A message of the user with the history that fits beside it."""

    prompt: TextPrompt
    messages: tuple[Message, ...]
    num_dropped: int  # old messages there was no room for


class Conversation:
    """Owns the messages. The oldest exchanges go when there is no room left for an answer."""

    def __init__(self, frontend: Frontend, *, system: str, max_tokens: int) -> None:
        if isinstance(frontend.tokenizer.chat_template, NoChatTemplate):
            raise ConfigError("this model has no chat template; use `outrider generate --raw`")
        self._frontend = frontend
        self._opening: tuple[Message, ...] = (_message("system", system),) if system else ()
        self._messages: tuple[Message, ...] = ()
        # Of a short context the answer may claim a quarter; history gets the rest.
        self._reserved = min(max_tokens, frontend.bounds.max_context // 4)

    def ask(self, text: str) -> ChatQuestion:
        """The next question; nothing is remembered before its answer."""
        messages = (*self._messages, _message("user", text))
        for num_dropped in range(0, len(messages), 2):  # a question and its answer go together
            kept = messages[num_dropped:]
            prompt = self._frontend.render((*self._opening, *kept))
            if self._fits(prompt):
                return ChatQuestion(prompt=prompt, messages=kept, num_dropped=num_dropped)
        room = self._frontend.bounds.max_context - self._reserved
        raise RequestError(f"the message does not fit in {room} tokens; shorten it")

    def remember(self, question: ChatQuestion, answer: str) -> None:
        """Go on from this question and its answer, complete or not."""
        self._messages = (*question.messages, _message("assistant", answer))

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._messages = ()

    def _fits(self, prompt: TextPrompt) -> bool:
        num_tokens = len(self._frontend.encode(prompt))
        return num_tokens + self._reserved <= self._frontend.bounds.max_context


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
