"""The target answers the prompts through our own engine; every answer is on disk once it ends."""

import random
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError, RequestError
from outrider.frontend.frontend import Frontend
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.request_feed import Feed
from outrider.frontend.request_state import PreparedRequest, RequestState
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.chat_template import NoChatTemplate
from outrider.train.conversations import TrainingConversation
from outrider.train.documents import Document, line_of, read_documents

Note = Callable[[int], None]  # one more conversation is answered; it gave this many tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSampling:
    """How answers are drawn."""

    temperatures: tuple[float, ...]  # every conversation is answered once at each
    max_tokens: int  # of one answer
    max_context: int  # of a document; longer ones are left out
    seed: int
    limit_s: float  # no answer begins or goes on after this time


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTask:
    """One conversation at one temperature."""

    conversation: TrainingConversation
    temperature: float


class Dialogue:
    """Owns what has been said in one conversation so far, as text and as tokens."""

    def __init__(self, task: AnswerTask, sampling: AnswerSampling, frontend: Frontend) -> None:
        self._task = task
        self._law = sampling
        self._frontend = frontend
        system = task.conversation.system
        self._messages = [{"role": "system", "content": system}] if system else []
        self._num_asked = 0
        self._tokens: tuple[int, ...] = ()
        self._answers: list[tuple[int, int]] = []
        self._closed: list[Document] = []

    @property
    def is_done(self) -> bool:
        said = self._task.conversation
        return self._num_asked >= max(len(said.turns), 1)

    def ask(self) -> PreparedRequest:
        """The request for the next answer; raises when it would not fit."""
        tokens = self._next_prompt()
        if len(tokens) + 2 > self._law.max_context:
            raise RequestError("the conversation is longer than a training sequence")
        if tokens[: len(self._tokens)] != self._tokens:
            # The template writes earlier answers down differently than they were generated.
            self._close()
        self._tokens = tokens
        self._num_asked += 1
        task, sampling = self._task, self._law
        params = SamplingParams(
            temperature=task.temperature,
            seed=_seed_of(task, sampling.seed),
            max_tokens=min(sampling.max_tokens, sampling.max_context - len(tokens)),
            detokenize=False,
        )
        return self._frontend.prepare(TokenPrompt(tokens), params)

    def hear(self, answer: Sequence[int]) -> None:
        """Take the next answer down; an empty one ends nothing that was said before."""
        if not answer:
            return
        start = len(self._tokens)
        self._tokens += tuple(answer)
        self._answers.append((start, len(self._tokens)))
        text = self._frontend.tokenizer.decode(list(answer), skip_special=True)
        self._messages.append({"role": "assistant", "content": text})

    def documents(self) -> list[Document]:
        """Usually one, with all answers in it."""
        self._close()
        return self._closed

    def _next_prompt(self) -> tuple[int, ...]:
        said, frontend = self._task.conversation, self._frontend
        if said.tokens:
            return said.tokens
        turn = said.turns[self._num_asked]
        if not isinstance(frontend.tokenizer.chat_template, NoChatTemplate):
            self._messages.append({"role": "user", "content": turn})
            return frontend.encode(frontend.render(self._messages))
        if len(said.turns) > 1:
            raise ConfigError(
                f"prompt {said.id} has {len(said.turns)} turns and the model has no chat "
                "template to join them; give single turns"
            )
        return frontend.encode(TextPrompt(turn))

    def _close(self) -> None:
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
                seed=_seed_of(task, self._law.seed),
            )
        )
        self._answers = []


def plan_tasks(
    conversations: Sequence[TrainingConversation],
    sampling: AnswerSampling,
    done: Iterable[Document],
) -> list[AnswerTask]:
    """What is left to do: each conversation once before any is answered a second time.

    Neighbours get different temperatures, so that a run that is cut short has all of them.
    """
    known = {(each.id, each.temperature) for each in done}
    order = list(conversations)
    random.Random(sampling.seed).shuffle(order)
    count = len(sampling.temperatures)
    tasks = (
        AnswerTask(conversation=each, temperature=sampling.temperatures[(index + turn) % count])
        for turn in range(count)
        for index, each in enumerate(order)
    )
    return [task for task in tasks if (task.conversation.id, task.temperature) not in known]


def answer_all(
    frontend: Frontend,
    tasks: Sequence[AnswerTask],
    sampling: AnswerSampling,
    path: Path,
    *,
    window: int,  # requests with the engine at a time
    note: Note,
) -> int:
    """Append a line to the file for every task that is answered in time; how many were left out."""
    end_s = time.monotonic() + sampling.limit_s
    num_skipped = 0
    active = [Dialogue(task, sampling, frontend) for task in tasks]
    with path.open("a", encoding="utf-8") as file:
        while active and time.monotonic() < end_s:
            waiting: list[Dialogue] = []
            for dialogue, answer in _one_turn(frontend, active, window=window):
                dialogue.hear(answer)
                num_skipped += not answer
                if answer and not dialogue.is_done:
                    waiting.append(dialogue)
                else:
                    finished = dialogue.documents()
                    file.write("".join(map(line_of, finished)))
                    note(sum(each.num_answered for each in finished))
                if time.monotonic() > end_s:
                    break
            active = waiting
    return num_skipped


def _one_turn(
    frontend: Frontend, dialogues: Iterable[Dialogue], *, window: int
) -> Iterator[tuple[Dialogue, tuple[int, ...]]]:
    """The next answer of every dialogue, as they finish; an empty one when it did not fit."""
    refused: list[Dialogue] = []

    def requests() -> Iterator[tuple[Dialogue, PreparedRequest]]:
        for dialogue in dialogues:
            try:
                yield dialogue, dialogue.ask()
            except RequestError:
                refused.append(dialogue)

    for dialogue, live in Feed(frontend, requests(), window=window):
        if isinstance(live, RequestState) and not live.output().error:
            yield dialogue, tuple(live.output().outputs[0].token_ids)
        else:
            refused.append(dialogue)
    yield from ((dialogue, ()) for dialogue in refused)


def repair(path: Path) -> list[Document]:
    """What earlier runs left in the file, without a line that was torn."""
    if not path.exists():
        return []
    documents = read_documents(path)
    raw = path.read_bytes()
    path.write_bytes(raw[: raw.rfind(b"\n") + 1])
    return documents


def _seed_of(task: AnswerTask, seed: int) -> int:
    """The noise of a task is its own, whatever else is answered beside it."""
    return zlib.crc32(f"{seed}/{task.conversation.id}/{task.temperature:g}".encode())
