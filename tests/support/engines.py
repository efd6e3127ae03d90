"""Engines around a loaded model, with padding forced where a test wants it."""

from dataclasses import dataclass, field

from outrider.config.attention_choice import AttentionChoice
from outrider.config.settings import ExecutionSettings, HostSettings, Settings
from outrider.engine.engine import Engine
from outrider.models.decoder import Decoder
from outrider.ops.tree.verify import verify
from outrider.runtime.build_runner import assemble_runner
from outrider.runtime.draft_kinds import DraftKind, NoDraft
from outrider.runtime.program import Verifier
from outrider.step.buckets import Buckets, Multiples, Sizes
from outrider.structured.grammar_cache import NO_GRAMMARS, Grammars
from outrider.wire.draft_budget import Budget
from outrider.wire.row_sampling import RowSampling
from outrider.wire.step_result import RoundTrace
from outrider.wire.submission import Limits, RequestUpdate, Submission

NO_DRAFT = NoDraft()
UNLIMITED = Budget(steps=64, topk=64, nodes=64)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How an engine runs; what it runs are submissions."""

    page_size: int = 4
    pad: int = 1  # sizes are rounded up to multiples of this
    executor: str = "eager"
    depth: int = 0
    step_tokens: int = 64
    max_rows: int = 4
    kv_tokens: int = 1024
    max_context: int = 128
    prefix_cache: bool = True
    row_snapshots: int | str = "auto"
    window_tokens: int | str = "auto"
    device: str = "cpu"
    arithmetic: str = "fast"
    kv_dtype: str = "auto"
    attention: str = "auto"
    draft_attention: str = "auto"
    max_loras: int = 0


def engine_of(
    model: Decoder,
    shape: Shape,
    draft: DraftKind = NO_DRAFT,
    grammars: Grammars = NO_GRAMMARS,
    verifier: Verifier = verify,
    rows: Sizes | None = None,
) -> Engine:
    runner, facts = assemble_runner(
        model,
        settings_of(shape),
        draft=draft,
        kv_tokens=shape.kv_tokens,
        row_snapshots=shape.row_snapshots,
        window_tokens=shape.window_tokens,
        buckets=buckets_of(shape, rows),
        grammars=grammars,
        verifier=verifier,
    )
    return Engine(runner, facts, runner.grammars, adapters=runner.adapters)


def settings_of(shape: Shape) -> Settings:
    return Settings(
        dtype="float32",
        device=shape.device,
        execution=ExecutionSettings(
            executor=shape.executor,
            depth=shape.depth,
            record="lazy",
            arithmetic=shape.arithmetic,
        ),
        memory_share=0.9,
        host=HostSettings(
            max_context=shape.max_context,
            max_rows=shape.max_rows,
            max_step_tokens=shape.step_tokens,
            max_queued=100,
            page_size=shape.page_size,
            prefix_cache=shape.prefix_cache,
            max_loras=shape.max_loras,
        ),
        kv_dtype=shape.kv_dtype,
        attention=AttentionChoice(target=shape.attention, draft=shape.draft_attention),
    )


def buckets_of(shape: Shape, rows: Sizes | None = None) -> Buckets:
    pad = Multiples(shape.pad)
    return Buckets(
        page_size=shape.page_size,
        rows=rows or pad,
        chunk_rows=pad,
        tokens=pad,
        pages=pad,
        chunk_pages=pad,
    )


@dataclass
class CollectedOutput:
    """All updates of one request put together."""

    tokens: list[int]
    logprobs: list[float]
    last: RequestUpdate
    rounds: list[RoundTrace] = field(default_factory=list)  # where the sampling wants traces


def make_submission(
    request_id: str,
    prompt: list[int],
    sampling: RowSampling,
    *,
    max_tokens: int = 8,
    stop_ids: tuple[int, ...] = (),
    budget: Budget = UNLIMITED,
) -> Submission:
    limits = Limits(max_tokens=max_tokens, stop_ids=frozenset(stop_ids))
    return Submission(
        request_id=request_id, prompt=tuple(prompt), sampling=sampling, limits=limits, budget=budget
    )


def run_all(
    engine: Engine, submissions: list[Submission], *, has_broken_drafter: bool = False
) -> dict[str, CollectedOutput]:
    """Outputs by request id of submissions that are all added before the first step.

    A drafter that is given up changes no token, so no other assertion would see it.
    """
    for submission in submissions:
        engine.add(submission)
    outputs: dict[str, CollectedOutput] = {}
    while engine.has_work:
        for update in engine.step():
            entry = outputs.setdefault(update.request_id, CollectedOutput([], [], update))
            entry.tokens += update.tokens
            entry.rounds += update.rounds
            entry.logprobs += [logprobs.chosen for logprobs in update.logprobs]
            entry.last = update
    assert bool(engine.num_drafter_failures) is has_broken_drafter
    return outputs
