"""Answers each prompt with every drafter before the next prompt, so that noise hits all alike."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.bench.speculation.speculation_report import Cost, SpeculationRun
from outrider.bench.speculation.timed_drafter import DraftClock, TimedDraft
from outrider.config.draft_config import DraftConfig, fit_usual
from outrider.config.engine_config import CacheConfig, Dtype, EngineConfig, LimitsConfig
from outrider.config.settings import resolve_settings
from outrider.engine.engine import Engine
from outrider.models.decoder import Decoder
from outrider.runtime.build_runner import assemble_runner
from outrider.runtime.load_draft import fit_draft, load_draft
from outrider.step.buckets import Buckets
from outrider.wire.draft_budget import UNBOUNDED
from outrider.wire.row_sampling import RowSampling
from outrider.wire.submission import Limits, Progress, Submission

Note = Callable[[str], None]  # called with the name of every run as it begins


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationQuestion:
    """A prompt as the model reads it."""

    kind: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationTarget:
    """The model that answers, shared by all drafters."""

    model: Decoder
    folder: Path
    dtype: Dtype
    max_context: int  # of the longest question and its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRules:
    """How every question is answered.

    Answers end at the model's end token: text after it repeats itself and is too easy to draft.
    """

    limits: Limits
    sampling: RowSampling


class DrafterEngine:
    """Owns an engine of one row with one drafter."""

    def __init__(self, name: str, target: SpeculationTarget, draft: DraftConfig) -> None:
        self.name = name
        self._clock = DraftClock()
        self._engine = _timed_engine(target, draft, self._clock)

    def answer(
        self, question: SpeculationQuestion, sampling: AnswerRules, *, salt: str
    ) -> SpeculationRun:
        """Run one request; the clock starts at its first token.

        It drafts from answers that ended with the same salt.
        """
        self._engine.add(
            Submission(
                request_id="",
                prompt=question.tokens,
                sampling=sampling.sampling,
                limits=sampling.limits,
                budget=UNBOUNDED,
                cache_salt=salt,
            )
        )
        tokens, progress, start = self._first_token()
        while self._engine.has_work:
            for update in self._engine.step():
                tokens += update.tokens
                progress = update.progress
        total_s = time.perf_counter() - start
        return SpeculationRun(
            kind=question.kind,
            drafter=self.name,
            tokens=tokens,
            rounds=progress.rounds,
            accepted_per_position=progress.accepted_per_depth,
            cost=Cost(
                total_s=total_s, draft_s=self._clock.draft_s, catch_up_s=self._clock.catch_up_s
            ),
        )

    def _first_token(self) -> tuple[tuple[int, ...], Progress, float]:
        """The tokens and progress of the steps that read the prompt, and the time after them."""
        while True:
            for update in self._engine.step():
                self._clock.reset()
                return update.tokens, update.progress, time.perf_counter()


def compare(
    engines: Sequence[DrafterEngine],
    questions: Sequence[SpeculationQuestion],
    sampling: AnswerRules,
    repetitions: int,
    note: Note,
) -> Iterator[SpeculationRun]:
    """Every question answered by every engine, after a warm-up that does not count.

    Of the repetitions the fastest counts: disturbances only make a run slower. None of them reads
    what another one, or the warm-up, answered to the same question.
    """
    for engine in engines:
        note(f"{engine.name}, warming up")
        engine.answer(questions[0], sampling, salt="warm-up")
    for question in questions:
        runs: dict[str, list[SpeculationRun]] = {engine.name: [] for engine in engines}
        for repetition, engine in itertools.product(range(repetitions), engines):
            note(f"{engine.name}, {question.kind}")
            runs[engine.name].append(engine.answer(question, sampling, salt=str(repetition)))
        yield from (min(each, key=lambda run: run.cost.total_s) for each in runs.values())


def count_drafter_runs(*, num_engines: int, num_questions: int, repetitions: int) -> int:
    """How often `note` will be called."""
    return num_engines * (1 + num_questions * repetitions)


def _timed_engine(target: SpeculationTarget, draft: DraftConfig, clock: DraftClock) -> Engine:
    config = EngineConfig(
        dtype=target.dtype,
        device="cpu",
        cache=CacheConfig(prefix=False),  # else the warm-up would cache a prompt of the run
        limits=LimitsConfig(context=target.max_context, rows=1),
        draft=fit_draft(fit_usual(draft, target.dtype, on_cpu=True), target.folder),
    )
    settings = resolve_settings(config, model_context=target.max_context, num_cuda=0)
    kind = load_draft(
        config.draft,
        target=target.model,
        target_folder=target.folder,
        dtype=target.dtype,
        arithmetic="fast",
        max_context=target.max_context,
    )
    runner, facts = assemble_runner(
        target.model,
        settings,
        draft=TimedDraft(kind, clock),
        kv_tokens="auto",
        buckets=Buckets(page_size=settings.host.page_size),
    )
    return Engine(runner, facts)
