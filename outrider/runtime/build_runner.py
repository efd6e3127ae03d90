"""Assembles a runner in the one order that works: weights, pools, backends, planner, runner."""

import logging
import os
import socket
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch

from outrider.config.engine_config import Auto
from outrider.config.settings import ExecutionSettings, HostSettings, Settings
from outrider.distributed.rank_group import ONE_RANK, RankGroup
from outrider.errors import ConfigError
from outrider.kv.kv_pool import PageFamily
from outrider.models.target import AnyTarget
from outrider.models.vision.vision_tower import NO_TOWER, VisionTower
from outrider.ops.tree.verify import verify
from outrider.runtime.check_backend import check_backend
from outrider.runtime.draft_kinds import DraftKind, DraftRoom
from outrider.runtime.draft_rungs import draft_facts, rungs_of
from outrider.runtime.explain_memory import explain_memory
from outrider.runtime.image_encoder import ImageEncoder
from outrider.runtime.kv_capacity import FixedPages
from outrider.runtime.measure_rungs import DEVICE_S, HOST_S, measure_rungs
from outrider.runtime.program import DeviceState, StepProgram, Verifier
from outrider.runtime.runner import Runner
from outrider.runtime.size_cache import RequestedCache, RowReach, SizedCache, size_cache
from outrider.runtime.target_cache import (
    AnyLayout,
    TargetCache,
    adapt_host,
    check_rows,
    narrow_layout,
    open_cache,
    window_layout,
)
from outrider.runtime.warmup import list_shapes, warm_up
from outrider.sampling.sampling_table import SamplingTable
from outrider.spec.agreed_drafter import AgreedDrafter
from outrider.spec.guarded_drafter import GuardedDrafter
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.buckets import Buckets, device_buckets, largest_shape
from outrider.step.choose_executor import make_executor
from outrider.step.device_stream import DeviceStream, is_host, open_device_stream
from outrider.step.executor import EagerExecutor, Executor
from outrider.step.input_embeds import EmbedsBuffer
from outrider.step.planner import Planner
from outrider.step.row_table import RowTable
from outrider.step.shape import ChunkShape, StepShape
from outrider.structured.follower_grammars import FollowerGrammars
from outrider.structured.grammar_cache import NO_GRAMMARS, Grammars
from outrider.structured.row_grammars import RowGrammars, StepGrammars
from outrider.wire.runner_facts import (
    DraftFacts,
    MemoryFacts,
    OnProgress,
    RankFacts,
    RunnerFacts,
    SnapshotFacts,
    ignore_progress,
)

MAX_CHUNKS = 8  # prompts that share one step; more would only make each chunk shorter

_log = logging.getLogger(__name__)


def choose_buckets(settings: Settings, draft: DraftKind) -> Buckets:
    """Exact shapes on a CPU, where padding costs time; few on a GPU, because each is captured."""
    host = settings.host
    if settings.device == "cpu":
        return Buckets(page_size=host.page_size)
    return device_buckets(
        page_size=host.page_size,
        max_rows=host.max_rows,
        max_chunks=MAX_CHUNKS,
        reach=_reach(host, draft),
    )


def assemble_runner(
    model: AnyTarget,
    settings: Settings,
    *,
    draft: DraftKind,
    kv_tokens: int | Auto | FixedPages,
    row_snapshots: int | Auto = "auto",
    window_tokens: int | Auto = "auto",
    buckets: Buckets,
    tower: VisionTower = NO_TOWER,
    weight_bytes: int = 0,  # that all models hold
    grammars: Grammars = NO_GRAMMARS,
    verifier: Verifier = verify,
    executor: Executor | None = None,
    on_progress: OnProgress = ignore_progress,
    ranks: RankGroup = ONE_RANK,
) -> tuple[Runner, RunnerFacts]:
    """Tables, drafter, planner and program around a loaded model; then pages; then graphs."""
    layout = model.layout(page_size=settings.host.page_size, nodes=draft.facts.budget.nodes)
    layout = window_layout(narrow_layout(layout, settings.kv_dtype), settings)
    stream = open_device_stream(torch.device(settings.device))
    with stream.active():  # the first step runs on this stream, after all that is made here
        if settings.device != "cpu":  # only the memory of a GPU is counted
            tower.dummy_run()
        return _assemble(
            _Loaded(
                model=model,
                layout=layout,
                draft=draft,
                tower=tower,
                weight_bytes=weight_bytes,
                grammars=grammars,
                verifier=verifier,
                executor=executor,
                ranks=ranks,
            ),
            settings,
            stream,
            RequestedCache(
                kv_tokens=kv_tokens, row_snapshots=row_snapshots, window_tokens=window_tokens
            ),
            buckets,
            on_progress,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """The parts of a runner besides settings."""

    model: AnyTarget
    layout: AnyLayout
    draft: DraftKind
    tower: VisionTower
    weight_bytes: int
    grammars: Grammars
    verifier: Verifier
    executor: Executor | None  # None: the one that the settings name
    ranks: RankGroup


def _assemble(
    loaded: _Loaded,
    settings: Settings,
    stream: DeviceStream,
    requested: RequestedCache,
    buckets: Buckets,
    on_progress: OnProgress,
) -> tuple[Runner, RunnerFacts]:
    draft = loaded.draft
    largest = _largest(settings.host, draft, buckets)
    check_rows(loaded.layout, settings, draft)
    pages = PageFamily(num_pages=1, device=torch.device(settings.device))
    cache = open_cache(loaded.layout, settings, draft, pages)
    with _enough_memory(settings.host):
        room, state = _make_room(loaded, settings, cache, largest)
    attention = cache.target.attention
    check_backend(attention.capabilities, "target", settings, draft.facts.budget)
    if draft.attention:
        check_backend(cache.room.backend.capabilities, "draft", settings, draft.facts.budget)
    drafter = _drafter(loaded, room)
    buckets = _adapted(buckets, attention, drafter)
    program = StepProgram(
        model=loaded.model,
        drafter=drafter,
        attention=attention,
        verifier=loaded.verifier,
        state=state,
        ranks=loaded.ranks,
    )
    with _enough_memory(settings.host):
        planner = _planner(program, attention, room, buckets, loaded)
    # Captured graphs hold addresses: no graph may be captured before the pages are final.
    dummy_runner = Runner(program=program, planner=planner, executor=EagerExecutor(), stream=stream)
    of_round, masks = draft.facts.reach(draft.facts.budget), state.grammars.mask_bytes
    reach = RowReach(tokens=_reach(settings.host, draft), of_round=of_round)
    sized = size_cache(
        requested, settings, room, dummy_runner, loaded.ranks, reach=reach, mask_bytes=masks
    )
    runner = Runner(
        program=program,
        planner=planner,
        executor=loaded.executor or _executor(settings.execution, loaded.ranks),
        stream=stream,
        num_snapshots=sized.snapshots.num,
    )
    facts = _prepare(runner, loaded, settings, buckets, largest, on_progress)
    memory = _memory(loaded, settings, sized, page_bytes=pages.page_bytes)
    return runner, _facts(loaded, settings, memory, facts, sized.snapshots)


def _prepare(
    runner: Runner,
    loaded: _Loaded,
    settings: Settings,
    buckets: Buckets,
    largest: StepShape,
    on_progress: OnProgress,
) -> DraftFacts:
    """Capture the usual shapes and measure what drafts cost, as far as that is wanted at start."""
    facts, execution = draft_facts(loaded.draft, buckets), settings.execution
    device, rungs = torch.device(settings.device), rungs_of(loaded.draft, buckets, execution)
    is_captured = execution.record == "at start" and execution.executor != "eager"
    if is_captured:
        shapes = list_shapes(largest, buckets, rungs)
        _log.info("%s", warm_up(runner, shapes, device, on_progress))
    # A step of a device that is not captured takes longer than it will. Ranks could end their
    # measurements after different steps. The rows of a dummy run read no experts.
    is_meaningful = is_captured or is_host(device)
    is_meaningful &= loaded.ranks is ONE_RANK and not loaded.model.config.has_experts
    if not (facts.is_adaptive and is_meaningful and execution.can_decode):
        return facts
    most_rows, most_s = settings.host.max_rows, HOST_S if is_host(device) else DEVICE_S
    costs = measure_rungs(runner, buckets, rungs, most_rows=most_rows, most_s=most_s)
    return replace(facts, costs=costs)


def _executor(execution: ExecutionSettings, ranks: RankGroup) -> Executor:
    return make_executor(execution.executor, lambda is_true: bool(ranks.least(int(is_true))))


def _facts(
    loaded: _Loaded,
    settings: Settings,
    memory: MemoryFacts,
    draft: DraftFacts,
    snapshots: SnapshotFacts,
) -> RunnerFacts:
    return RunnerFacts(
        memory=memory,
        vocab_size=loaded.model.config.vocab_size,
        hidden_size=loaded.model.embedding.shape[1],
        takes_embeds=loaded.model.config.takes_embeds,
        draft=draft,
        max_chunks=MAX_CHUNKS,
        host=adapt_host(settings.host, snapshots),
        depth=settings.execution.depth,
        snapshots=snapshots,
    )


def _adapted(buckets: Buckets, attention: AttentionPlanner, drafter: GuardedDrafter) -> Buckets:
    """The buckets with what attention can do, and what the drafter needs."""
    is_ragged = attention.capabilities.is_ragged
    facts = drafter.facts
    return replace(buckets, lead=facts.lead, block=facts.block, is_ragged=is_ragged)


def _memory(
    loaded: _Loaded, settings: Settings, sized: SizedCache, *, page_bytes: int
) -> MemoryFacts:
    own = RankFacts(
        rank=loaded.ranks.rank,
        pid=os.getpid(),
        host=socket.gethostname(),
        device=settings.device,
        weight_bytes=loaded.weight_bytes,
        kv_bytes=sized.num_pages * page_bytes + sized.windows.kv_bytes,
    )
    activations = str(loaded.layout.dtype).removeprefix("torch.")
    return MemoryFacts(
        weight_bytes=loaded.weight_bytes,
        page_bytes=page_bytes,
        num_pages=sized.num_pages,
        tp_size=loaded.ranks.size,
        ranks=(own,),
        kv_dtype=activations if settings.kv_dtype == "auto" else settings.kv_dtype,
        windows=sized.windows,
        weights=loaded.model.storage,
    )


def _enough_memory(host: HostSettings) -> AbstractContextManager[None]:
    """Explain that the tables of rows and contexts do not fit."""
    return explain_memory(
        f"there is no memory for {host.max_rows} rows with a context of {host.max_context} "
        "tokens; lower --max-context / max_model_len or max_num_seqs",
        ConfigError,
    )


def _make_room(
    loaded: _Loaded, settings: Settings, cache: TargetCache, largest: StepShape
) -> tuple[DraftRoom, DeviceState]:
    """The device tables, with pools of one page for now."""
    host, device = settings.host, torch.device(settings.device)
    vocab = loaded.model.config.vocab_size
    state = DeviceState(
        kv=cache.target.pool,
        pages=cache.room.pages,
        rows=RowTable(
            max_rows=host.max_rows,
            max_pages=largest.pages,
            device=device,
            has_windows=cache.room.pages.window.tokens > 0,
        ),
        sampling=SamplingTable(rows=host.max_rows + 1, vocab=vocab, device=device),
        grammars=_grammars(loaded, largest, vocab, device),
    )
    room = DraftRoom(
        target=loaded.layout,
        cache=cache.room,
        sampling=state.sampling,
        largest=largest,
        is_ragged=cache.target.attention.capabilities.is_ragged,
        gets_pages=settings.gets_pages,
    )
    return room, state


def _drafter(loaded: _Loaded, room: DraftRoom) -> GuardedDrafter:
    drafter = loaded.draft.build(room)
    if loaded.ranks.size == 1:
        return GuardedDrafter(drafter, is_alone=loaded.ranks.experts is None)
    return GuardedDrafter(AgreedDrafter(drafter, loaded.ranks), is_alone=False)


def _grammars(
    loaded: _Loaded, largest: StepShape, vocab: int, device: torch.device
) -> StepGrammars:
    """One rank compiles and matches grammars; the others get its masks."""
    if loaded.ranks.rank:
        return FollowerGrammars(largest=largest, vocab=vocab, device=device)
    return RowGrammars(loaded.grammars, largest=largest, vocab=vocab, device=device)


def _planner(
    program: StepProgram,
    attention: AttentionPlanner,
    room: DraftRoom,
    buckets: Buckets,
    loaded: _Loaded,
) -> Planner:
    arena, most_tokens = Arena(room.sampling.seed.device), room.largest.chunk.tokens
    images = ImageEncoder(loaded.tower, most_tokens=most_tokens)
    return Planner(
        arena=arena,
        attention=attention,
        draft=program.drafter,
        table=program.state.rows,
        buckets=buckets,
        largest=room.largest,
        embeds=EmbedsBuffer(
            arena,
            loaded.model.embedding,
            most_tokens=most_tokens,
            encode_image=images.vectors,
            num_deepstack=loaded.tower.num_deepstack,
        ),
        # Only images move rotary positions: texts alone have the same angles without axes.
        has_axes=loaded.model.config.has_axes and loaded.tower.reads_images,
    )


def _reach(host: HostSettings, draft: DraftKind) -> int:
    """Positions a row may touch: its context, and two rounds in flight past its end."""
    return host.max_context + 2 * draft.facts.reach(draft.facts.budget)


def _largest(host: HostSettings, draft: DraftKind, buckets: Buckets) -> StepShape:
    tokens = host.max_step_tokens
    return largest_shape(
        rows=host.max_rows,
        tree=draft.facts.budget,
        chunk=ChunkShape(rows=MAX_CHUNKS, tokens=tokens, width=tokens),
        pages=-(-_reach(host, draft) // host.page_size),
        buckets=buckets,
    )
