"""One conversation with the target: prompts for its next answer, and documents of its answers."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import ConfigError, RequestError
from outrider.frontend.frontend import Frontend
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.request_state import PreparedRequest
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.chat_template import NoChatTemplate
from outrider.train.conversations import TrainingConversation
from outrider.train.documents import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSampling:
    """How answers are sampled."""

    temperatures: tuple[float, ...]  # every conversation is answered once at each
    max_tokens: int  # of one answer
    max_context: int  # of a document; longer ones are left out
    seed: int
    limit_s: float  # answering stops after this time


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTask:
    """One conversation at one temperature."""

    conversation: TrainingConversation
    temperature: float


class Dialogue:
    """Owns the text and the tokens of one conversation so far."""

    def __init__(self, task: AnswerTask, sampling: AnswerSampling, frontend: Frontend) -> None:
        self._task = task
        self._sampling = sampling
        self._frontend = frontend
        system = task.conversation.system
        self._messages = [{"role": "system", "content": system}] if system else []
        self._num_turns = 0  # user turns sent so far
        self._tokens: tuple[int, ...] = ()
        self._answers: list[tuple[int, int]] = []
        self._closed: list[Document] = []

    @property
    def is_done(self) -> bool:
        return self._num_turns >= max(len(self._task.conversation.turns), 1)

    def next_request(self) -> PreparedRequest:
        """The request for the next answer; raises when the prompt is too long."""
        tokens = self._next_prompt()
        if len(tokens) + 2 > self._sampling.max_context:
            raise RequestError("the conversation is longer than a training sequence")
        if tokens[: len(self._tokens)] != self._tokens:
            # The template renders earlier answers to other tokens than were generated.
            self._close_document()
        self._tokens = tokens
        self._num_turns += 1
        task, sampling = self._task, self._sampling
        params = SamplingParams(
            temperature=task.temperature,
            seed=_seed_of(task, sampling.seed),
            max_tokens=min(sampling.max_tokens, sampling.max_context - len(tokens)),
            detokenize=False,
        )
        return self._frontend.inputs.prepare(TokenPrompt(tokens), params)

    def add_answer(self, answer: Sequence[int]) -> None:
        """Append the next answer. An empty answer changes nothing."""
        if not answer:
            return
        start = len(self._tokens)
        self._tokens += tuple(answer)
        self._answers.append((start, len(self._tokens)))
        text = self._frontend.tokenizer.decode(list(answer), skip_special=True)
        self._messages.append({"role": "assistant", "content": text})

    def documents(self) -> list[Document]:
        """The documents of the conversation: usually one, with all answers."""
        self._close_document()
        return self._closed

    def _next_prompt(self) -> tuple[int, ...]:
        conversation, frontend = self._task.conversation, self._frontend
        if conversation.tokens:
            return conversation.tokens
        turn = conversation.turns[self._num_turns]
        if not isinstance(frontend.tokenizer.chat_template, NoChatTemplate):
            self._messages.append({"role": "user", "content": turn})
            return frontend.inputs.encode(frontend.inputs.render(self._messages))
        if len(conversation.turns) > 1:
            raise ConfigError(
                f"prompt {conversation.id} has {len(conversation.turns)} turns and the model has "
                "no chat template to join them; give single turns"
            )
        return frontend.inputs.encode(TextPrompt(turn))

    def _close_document(self) -> None:
        if not self._answers:
            return
        task = self._task
        self._closed.append(
            Document(
                id=task.conversation.id,
                source=task.conversation.source,
                tokens=self._tokens,
                answers=tuple(self._answers),
                temperature=task.temperature,
                seed=_seed_of(task, self._sampling.seed),
            )
        )
        self._answers = []


def _seed_of(task: AnswerTask, seed: int) -> int:
    """The seed of a task. It does not depend on the other tasks."""
    return zlib.crc32(f"{seed}/{task.conversation.id}/{task.temperature:g}".encode())
