"""The documents to train on: read from files of earlier runs, or answered by the target now."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outrider.frontend.batch_bar import batch_bar
from outrider.frontend.llm import LLM
from outrider.hub.download_bars import BarReporter
from outrider.hub.resolve_model import resolve_model
from outrider.models.model_config import read_config
from outrider.train.answers import answer_all, plan_tasks, read_complete_documents
from outrider.train.conversations import TrainingConversation, read_conversations
from outrider.train.dialogue import AnswerSampling
from outrider.train.documents import Document, read_documents
from outrider.train.text_prompts import text_conversations
from outrider.train.training_log import log_line
from outrider.train.user_turns import TurnSampling, write_turns

_MOST_TURNS = 50_000  # in one file; the time ends before


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPart:
    """One of several equal shares of the conversations. Each share is for one process."""

    number: int = 1
    of: int = 1

    def share(self, conversations: Sequence[TrainingConversation]) -> list[TrainingConversation]:
        """The conversations of this part. The part of a conversation depends on its id only."""
        return [
            each
            for each in conversations
            if zlib.crc32(each.id.encode()) % self.of == self.number - 1
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGenerator:
    """The engine that generates the answers."""

    model: str
    device: str
    rows: int  # requests that run at the same time
    memory_share: float  # of the GPU's memory

    @property
    def max_context(self) -> int:
        return read_config(resolve_model(self.model, BarReporter())).max_context

    def start(self, max_context: int) -> LLM:
        return LLM(
            self.model,
            draft="none",
            device=self.device,
            max_model_len=min(max_context, self.max_context),
            max_num_seqs=self.rows,
            max_num_batched_tokens=self.rows + 2048,
            gpu_memory_utilization=self.memory_share,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPrompts:
    """How long the target writes prompts itself, and answers prompts about its own texts."""

    turns_s: float = 0.0  # before the prompts of files are answered, which wait for it
    texts_s: float = 0.0  # after that


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSource:
    """Where answers come from."""

    prompts: tuple[Path, ...]
    answers: tuple[Path, ...]  # files with answers; empty: answers are generated
    sampling: AnswerSampling
    part: AnswerPart = AnswerPart()
    own: OwnPrompts = OwnPrompts()

    @property
    def own_seed(self) -> int:
        """Of prompts that are not in a file. It differs between parts."""
        part = self.part
        return zlib.crc32(f"{self.sampling.seed}/{part.number}/{part.of}".encode()) % 10**6


def gather_answers(
    source: AnswerSource, generator: AnswerGenerator, path: Path, *, is_complete: bool
) -> list[Document]:
    """The documents of the answer files, or those at `path` after the target has answered."""
    if source.answers:
        return [each for file in source.answers for each in read_documents(file)]
    done = read_complete_documents(path)
    max_context = min(source.sampling.max_context, generator.max_context)
    sampling = replace(source.sampling, max_context=max_context)
    conversations = [each for file in source.prompts for each in read_conversations(file)]
    conversations = source.part.share(conversations)
    has_own = source.own.turns_s > 0 or source.own.texts_s > 0
    if is_complete or not (has_own or plan_tasks(conversations, sampling, done)):
        return done
    llm = generator.start(sampling.max_context)
    if source.own.turns_s:
        conversations += _own_turns(llm, source, path, max_in_flight=2 * generator.rows)
    skipped = _answer(llm, conversations, sampling, path, max_in_flight=2 * generator.rows)
    if source.own.texts_s:
        texts = text_conversations(
            read_documents(path),
            lambda tokens: llm.frontend.tokenizer.decode(list(tokens), skip_special=True),
            seed=source.own_seed,
            max_tokens=sampling.max_context // 2,
        )
        sampling = replace(sampling, limit_s=source.own.texts_s)
        skipped += _answer(llm, texts, sampling, path, max_in_flight=2 * generator.rows)
    documents = read_documents(path)
    num_tokens = sum(each.num_answer_tokens for each in documents)
    log_line(f"{len(documents)} documents with {num_tokens} answered tokens; {skipped} did not fit")
    return documents


def _own_turns(
    llm: LLM, source: AnswerSource, path: Path, *, max_in_flight: int
) -> list[TrainingConversation]:
    """User turns that the target writes, in a file beside that of the answers."""
    turns = path.with_suffix(".turns.jsonl")
    sampling = TurnSampling(
        count=_MOST_TURNS,
        temperature=1.0,
        max_tokens=source.sampling.max_context // 4,
        seed=source.own_seed,
        limit_s=source.own.turns_s,
    )
    with batch_bar(_MOST_TURNS) as on_turn:
        write_turns(llm.frontend, sampling, turns, max_in_flight=max_in_flight, on_turn=on_turn)
    return read_conversations(turns)


def _answer(
    llm: LLM,
    conversations: Sequence[TrainingConversation],
    sampling: AnswerSampling,
    path: Path,
    *,
    max_in_flight: int,
) -> int:
    """Answer what the file does not have yet. Returns how many prompts did not fit."""
    tasks = plan_tasks(conversations, sampling, read_complete_documents(path))
    with batch_bar(len(tasks)) as on_answer:
        return answer_all(
            llm.frontend, tasks, sampling, path, max_in_flight=max_in_flight, on_answer=on_answer
        )
