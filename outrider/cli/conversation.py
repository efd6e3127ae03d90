"""The messages of one chat, as many as fit in the model's context."""

from dataclasses import dataclass

from outrider.errors import ConfigError, RequestError
from outrider.frontend.frontend import Frontend
from outrider.frontend.prompts import Message, TextPrompt
from outrider.frontend.tokenizer.chat_template import NoChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuestion:
    """A message of the user with the earlier messages that fit before it."""

    prompt: TextPrompt
    messages: tuple[Message, ...]
    num_dropped: int  # old messages that did not fit


class Conversation:
    """Owns the messages. The oldest are dropped when there is no room left for an answer."""

    def __init__(self, frontend: Frontend, *, system: str, max_tokens: int) -> None:
        if isinstance(frontend.tokenizer.chat_template, NoChatTemplate):
            raise ConfigError("this model has no chat template; use `outrider generate --raw`")
        self._frontend = frontend
        self._opening: tuple[Message, ...] = (_message("system", system),) if system else ()
        self._messages: tuple[Message, ...] = ()
        # In a short context, a quarter is reserved for the answer.
        self._reserved = min(max_tokens, frontend.inputs.bounds.max_context // 4)

    def make_question(self, text: str) -> ChatQuestion:
        """The next question. It joins the messages only with its answer."""
        messages = (*self._messages, _message("user", text))
        for num_dropped in range(0, len(messages), 2):  # a question is dropped with its answer
            recent = messages[num_dropped:]
            prompt = self._frontend.inputs.render((*self._opening, *recent))
            if self._fits(prompt):
                return ChatQuestion(prompt=prompt, messages=recent, num_dropped=num_dropped)
        room = self._frontend.inputs.bounds.max_context - self._reserved
        raise RequestError(f"the message does not fit in {room} tokens; shorten it")

    def add_answer(self, question: ChatQuestion, answer: str) -> None:
        """Continue after this question and its answer, complete or not."""
        self._messages = (*question.messages, _message("assistant", answer))

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._messages = ()

    def _fits(self, prompt: TextPrompt) -> bool:
        num_tokens = len(self._frontend.inputs.encode(prompt))
        return num_tokens + self._reserved <= self._frontend.inputs.bounds.max_context


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
