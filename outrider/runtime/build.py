"""Assembles an engine in the one order that works: weights, pools, backends, planner, runner."""

import logging
from dataclasses import replace
from pathlib import Path

import torch

from outrider.attention.protocol import Capabilities
from outrider.attention.reference import ReferenceAttention
from outrider.config.engine import Auto, EngineConfig
from outrider.config.settings import HostSettings, Settings, resolve
from outrider.errors import ConfigError
from outrider.memory.arena import Arena
from outrider.memory.pool import KVLayout, KVPool
from outrider.models.config import read_config
from outrider.models.decoder import Decoder
from outrider.models.loader import load_decoder
from outrider.plan.shape import ChunkShape, StepShape
from outrider.runtime.capacity import count_pages
from outrider.runtime.drafts import DraftKind, DraftRoom
from outrider.runtime.load_draft import load_draft
from outrider.runtime.program import DeviceState, StepProgram
from outrider.runtime.runner import Runner
from outrider.sampling.table import SamplingTable
from outrider.spec.guard import GuardedDrafter
from outrider.step.buckets import Buckets, largest_shape, round_up
from outrider.step.executor import EagerExecutor
from outrider.step.planner import Planner
from outrider.step.rows import RowTable
from outrider.step.tape import TapeExecutor
from outrider.wire.worker import RunnerFacts

MAX_CHUNKS = 8  # prompts that share one step; more would only make each chunk shorter

_log = logging.getLogger(__name__)


def build_runner(folder: Path, config: EngineConfig) -> tuple[Runner, RunnerFacts]:
    """A runner for the model in a folder, and what the deciding half must know about it."""
    model_config = read_config(folder)
    settings = resolve(
        config, model_context=model_config.max_context, num_cuda=torch.cuda.device_count()
    )
    _log.info("%s", settings)
    model = load_decoder(folder, dtype=settings.dtype, device=torch.device(settings.device))
    return assemble_runner(
        model,
        settings,
        draft=load_draft(
            config.draft,
            target=model,
            target_folder=folder,
            dtype=settings.dtype,
            max_context=settings.host.max_context,
        ),
        kv_tokens=config.cache.kv_tokens,
        buckets=Buckets(page_size=settings.host.page_size),
    )


def assemble_runner(
    model: Decoder,
    settings: Settings,
    *,
    draft: DraftKind,
    kv_tokens: int | Auto,
    buckets: Buckets,
) -> tuple[Runner, RunnerFacts]:
    """Pools, tables, drafter, planner and program around a loaded model, in that order."""
    host, device, layout = settings.host, torch.device(settings.device), _kv_layout(model, settings)
    reach = _reach(host, draft)
    num_pages = count_pages(
        kv_tokens,
        page_size=layout.page_size,
        page_bytes=layout.page_bytes + draft.page_bytes(layout),
        most_pages=host.max_rows * -(-reach // layout.page_size),
        device=device,
    )
    max_pages = round_up(-(-reach // host.page_size), buckets.pages)
    vocab = model.config.vocab_size
    state = DeviceState(
        kv=KVPool(layout, num_pages=num_pages + 1, device=device),
        rows=RowTable(max_rows=host.max_rows, max_pages=max_pages, device=device),
        sampling=SamplingTable(rows=host.max_rows + 1, vocab=vocab, device=device),
    )
    room = DraftRoom(
        target=layout,
        num_pages=num_pages + 1,
        attention=ReferenceAttention(page_size=host.page_size, dtype=layout.dtype),
        sampling=state.sampling,
        largest=_largest(host, draft, buckets),
    )
    _check_backend(room.attention.capabilities, settings, draft)
    facts = RunnerFacts(
        num_pages=num_pages,
        vocab_size=vocab,
        draft=draft.facts,
        max_chunks=MAX_CHUNKS,
        host=host,
        depth=settings.depth,
    )
    drafter = GuardedDrafter(draft.build(room))
    return _runner(model, drafter, room, state, settings, buckets), facts


def _runner(
    model: Decoder,
    drafter: GuardedDrafter,
    room: DraftRoom,
    state: DeviceState,
    settings: Settings,
    buckets: Buckets,
) -> Runner:
    program = StepProgram(model=model, drafter=drafter, attention=room.attention, state=state)
    planner = Planner(
        arena=Arena(torch.device(settings.device)),
        attention=room.attention,
        draft=drafter,
        buckets=replace(buckets, lead=drafter.facts.lead),
        largest=room.largest,
    )
    executor = TapeExecutor() if settings.executor == "tape" else EagerExecutor()
    return Runner(program=program, drafter=drafter, planner=planner, executor=executor, state=state)


def _check_backend(can: Capabilities, settings: Settings, draft: DraftKind) -> None:
    """Refuse at start what the attention backend could not do in a step."""
    page_size, nodes = settings.host.page_size, draft.facts.budget.nodes
    if page_size not in can.page_sizes:
        sizes = f"{can.page_sizes.start} to {can.page_sizes.stop - 1}"
        raise ConfigError(f"attention has no pages of {page_size} tokens; use {sizes}")
    if nodes > can.max_nodes:
        raise ConfigError(f"attention takes trees of {can.max_nodes} nodes; lower --nodes {nodes}")
    if can.needs_host_lengths and settings.depth:
        raise ConfigError("this attention backend needs lengths on the host; use depth 0")


def _reach(host: HostSettings, draft: DraftKind) -> int:
    """Positions a row may touch: its context, and two rounds in flight past its end."""
    return host.max_context + 2 * draft.facts.budget.reach(draft.facts.lead)


def _kv_layout(model: Decoder, settings: Settings) -> KVLayout:
    attention = model.config.attention
    return KVLayout(
        layers=model.config.num_layers,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        page_size=settings.host.page_size,
        dtype=model.dtype,
    )


def _largest(host: HostSettings, draft: DraftKind, buckets: Buckets) -> StepShape:
    tokens = host.max_step_tokens
    return largest_shape(
        rows=host.max_rows,
        tree=draft.facts.budget,
        chunk=ChunkShape(rows=MAX_CHUNKS, tokens=tokens, width=tokens),
        pages=-(-_reach(host, draft) // host.page_size),
        buckets=buckets,
    )
