"""The target answers prompts through our own engine. Documents are written when they end."""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from outrider.errors import RequestError
from outrider.frontend.frontend import Frontend
from outrider.frontend.request_feed import Feed
from outrider.frontend.request_state import PreparedRequest, RequestState
from outrider.train.conversations import TrainingConversation
from outrider.train.dialogue import AnswerSampling, AnswerTask, Dialogue
from outrider.train.documents import Document, line_of, read_documents

OnAnswer = Callable[[int], None]  # called per finished conversation with its answer tokens


def plan_tasks(
    conversations: Sequence[TrainingConversation],
    sampling: AnswerSampling,
    done: Iterable[Document],
) -> list[AnswerTask]:
    """The tasks that are not done. Each conversation is answered once before any a second time.

    Neighbours get different temperatures, so a run that is cut short has all temperatures.
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
    max_in_flight: int,  # requests in the engine at the same time
    on_answer: OnAnswer,
) -> int:
    """Append a line to the file for every task answered in time. Returns how many did not fit."""
    end_s = time.monotonic() + sampling.limit_s
    num_skipped = 0
    active = [Dialogue(task, sampling, frontend) for task in tasks]
    with path.open("a", encoding="utf-8") as file:
        while active and time.monotonic() < end_s:
            waiting: list[Dialogue] = []
            for dialogue, answer in _one_turn(frontend, active, max_in_flight=max_in_flight):
                dialogue.add_answer(answer)
                num_skipped += not answer
                if answer and not dialogue.is_done:
                    waiting.append(dialogue)
                else:
                    finished = dialogue.documents()
                    file.write("".join(map(line_of, finished)))
                    on_answer(sum(each.num_answer_tokens for each in finished))
                if time.monotonic() > end_s:
                    break
            active = waiting
    return num_skipped


def _one_turn(
    frontend: Frontend, dialogues: Iterable[Dialogue], *, max_in_flight: int
) -> Iterator[tuple[Dialogue, tuple[int, ...]]]:
    """The next answer of every dialogue, as it finishes. Empty: the prompt did not fit."""
    refused: list[Dialogue] = []

    def requests() -> Iterator[tuple[Dialogue, PreparedRequest]]:
        for dialogue in dialogues:
            try:
                yield dialogue, dialogue.next_request()
            except RequestError:
                refused.append(dialogue)

    for dialogue, live in Feed(frontend, requests(), max_in_flight=max_in_flight):
        if isinstance(live, RequestState) and not live.output().error:
            yield dialogue, tuple(live.output().outputs[0].token_ids)
        else:
            refused.append(dialogue)
    yield from ((dialogue, ()) for dialogue in refused)


def read_complete_documents(path: Path) -> list[Document]:
    """The documents that earlier runs wrote. Cuts an incomplete last line off the file."""
    if not path.exists():
        return []
    documents = read_documents(path)
    raw = path.read_bytes()
    path.write_bytes(raw[: raw.rfind(b"\n") + 1])
    return documents
