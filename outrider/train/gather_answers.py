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
from outrider.train.training_log import log_line


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
class AnswerSource:
    """Where answers come from."""

    prompts: tuple[Path, ...]
    answers: tuple[Path, ...]  # files with answers; empty: answers are generated
    sampling: AnswerSampling
    part: AnswerPart = AnswerPart()


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
    tasks = plan_tasks(source.part.share(conversations), sampling, done)
    if is_complete or not tasks:
        return done
    llm = generator.start(sampling.max_context)
    with batch_bar(len(tasks)) as on_answer:
        skipped = answer_all(
            llm.frontend,
            tasks,
            sampling,
            path,
            max_in_flight=2 * generator.rows,
            on_answer=on_answer,
        )
    documents = read_documents(path)
    num_tokens = sum(each.num_answer_tokens for each in documents)
    log_line(f"{len(documents)} documents with {num_tokens} answered tokens; {skipped} did not fit")
    return documents
