"""Engines around one model in memory: plain, or with a drafter."""

import gc
from dataclasses import dataclass, replace

import torch

from benchmarks.dummy_models import (
    dummy_decoder,
    dummy_head,
    dummy_modules,
    dummy_v4,
    dummy_v4_module,
)
from benchmarks.forced_acceptance import ForcedVerifier
from benchmarks.steps.bench_engine import BenchEngine, DraftWithPools
from benchmarks.steps.body import Body
from benchmarks.steps.quantised_bodies import saved_bytes
from benchmarks.steps.step_args import PROFILED, SKIPPED, Case, Place, StepWork, Stored, Tree
from benchmarks.steps.step_floors import held_bytes
from outrider.config.draft_config import NO_DRAFT, DraftConfig, resolve_budget
from outrider.config.engine_config import (
    DRAFT_ARITHMETIC,
    Arithmetic,
    CacheConfig,
    EngineConfig,
    ExecutionConfig,
    LimitsConfig,
)
from outrider.config.settings import USUAL_PAGE, ExecutionSettings, Settings, resolve_settings
from outrider.errors import ConfigError
from outrider.models.decoder import Decoder
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_decoder import V4Decoder
from outrider.models.target import load_target
from outrider.ops.tree.verify import verify
from outrider.runtime.build_runner import MAX_CHUNKS, assemble_runner, choose_buckets
from outrider.runtime.draft_kinds import DraftKind, ModelDraft, ModulesDraft, NoDraft
from outrider.runtime.program import Verifier
from outrider.runtime.runner import Runner
from outrider.step.executor import Executor
from outrider.wire.draft_budget import PLAIN, Budget

_FAR = 1 << 20  # positions of the noise


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTarget:
    """A model with its weights on the device, and its source."""

    name: str
    model: Decoder | V4Decoder
    place: Place
    execution: ExecutionSettings  # resolved from the place
    is_dummy: bool
    is_cut: bool = False  # to a few layers of the body

    @property
    def device(self) -> torch.device:
        return self.model.embedding.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """The draft kind and the verifier of an engine."""

    kind: DraftKind
    verifier: Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEngine:
    """An engine, and its runner, whose counters the engine does not show."""

    engine: BenchEngine
    runner: Runner


def resolve_place(place: Place) -> Settings:
    """The settings of this place, before the work is known."""
    return _settings(place, context=8, rows=1, budget=PLAIN)


def load_bench_target(source: Body | Stored, place: Place) -> BenchTarget:
    """Random weights of a body, or the weights in a folder."""
    settings = resolve_place(place)
    device, arithmetic = torch.device(settings.device), settings.execution.arithmetic
    if isinstance(source, Body):
        _check_room(source, place, device)
    model = _load_model(source, place, device=device, arithmetic=arithmetic)
    return BenchTarget(
        name=_name(source, place),
        model=model,
        place=place,
        execution=settings.execution,
        is_dummy=isinstance(source, Body),
        is_cut=isinstance(source, Body) and source.is_cut,
    )


def _name(source: Body | Stored, place: Place) -> str:
    parts = "" if place.quantization == "none" else f", projections in {place.quantization}"
    return source.name + parts


def _load_model(
    source: Body | Stored, place: Place, *, device: torch.device, arithmetic: Arithmetic
) -> Decoder | V4Decoder:
    dtype, quantization = place.dtype, place.quantization
    if isinstance(source, Stored):
        if quantization != "none":
            raise ConfigError("--quantization is for random weights; use --body, or leave it out")
        model = load_target(source.folder, dtype=dtype, device=device, arithmetic=arithmetic)
        assert isinstance(model, Decoder | V4Decoder), "there are no other targets"
        return model
    config = source.config
    if isinstance(config, V4Config):
        return dummy_v4(
            config, dtype=dtype, device=device, arithmetic=arithmetic, quantization=quantization
        )
    return dummy_decoder(
        config, dtype=dtype, device=device, arithmetic=arithmetic, quantization=quantization
    )


def _check_room(body: Body, place: Place, device: torch.device) -> None:
    """Refuse weights that a GPU cannot hold before the first of them is made."""
    if device.type != "cuda":
        return
    saved = saved_bytes(body.config, place.dtype, place.quantization)
    needed, (free, _) = (
        held_bytes(body.config, place.dtype) - saved,
        torch.cuda.mem_get_info(device),
    )
    if needed > free:
        raise ConfigError(
            f"the weights of {body.name} take {needed / 1e9:.0f} GB and {free / 1e9:.0f} GB are "
            "free; lower --layers"
        )


def no_drafting() -> Drafting:
    """Plain decoding."""
    return Drafting(kind=NoDraft(), verifier=verify)


def head_drafting(target: BenchTarget, tree: Tree, *, draft_vocab: int) -> Drafting:
    """A random EAGLE-3 head with forced acceptance."""
    if not isinstance(target.model, Decoder):
        raise ConfigError(f"there is no EAGLE-3 head for {target.name}; use --modules 1")
    head = dummy_head(
        target.model,
        draft_vocab=draft_vocab,
        dtype=target.place.dtype,
        arithmetic=DRAFT_ARITHMETIC,
    )
    return Drafting(
        kind=ModelDraft(model=head, budget=budget_of(tree)),
        verifier=ForcedVerifier(tree.mean_emitted, device=target.device),
    )


def module_drafting(target: BenchTarget, tree: Tree, *, num: int) -> Drafting:
    """Random modules inside the target with forced acceptance: one repeated, or one per step."""
    dtype, arithmetic = target.place.dtype, DRAFT_ARITHMETIC
    budget, verifier = budget_of(tree), ForcedVerifier(tree.mean_emitted, device=target.device)
    if isinstance(target.model, V4Decoder):
        if num > 1:
            raise ConfigError(f"{target.name} runs one module for all steps; use --modules 1")
        module = dummy_v4_module(target.model, dtype=dtype, arithmetic=arithmetic)
        return Drafting(kind=ModelDraft(model=module, budget=budget), verifier=verifier)
    modules = dummy_modules(target.model, num=num, dtype=dtype, arithmetic=arithmetic)
    if num == 1:
        return Drafting(kind=ModelDraft(model=modules, budget=budget), verifier=verifier)
    return Drafting(kind=ModulesDraft(modules=modules, budget=budget), verifier=verifier)


def budget_of(tree: Tree) -> Budget:
    """The budget of every drafter. Refuses sizes that do not fit together."""
    config = DraftConfig(drafter="eagle3", steps=tree.steps, topk=tree.topk, nodes=tree.nodes)
    draft = resolve_budget(config)
    if draft.notes:
        raise ConfigError(f"{draft.notes[0]}; change --draft-steps, --topk or --nodes")
    return Budget(steps=draft.tree.steps, topk=draft.tree.topk, nodes=draft.tree.nodes)


def reach_of(work: StepWork, budget: Budget, *, step_tokens: int) -> int:
    """The most tokens a row of the work can have: its prompt, and what it emits until its end."""
    return max(_reach_of(case, work.steps, budget, step_tokens) for case in work.cases)


def build(
    target: BenchTarget,
    drafting: Drafting,
    *,
    rows: int,
    context: int,
    executor: Executor | None = None,  # None: the one that the place names
) -> LoadedEngine:
    """An engine with room for that many rows of that length, without a prefix cache."""
    gc.collect()  # engines hold reference cycles, and the last one may still hold its KV
    if target.device.type == "cuda":
        torch.cuda.empty_cache()
    budget = drafting.kind.facts.budget
    settings = _settings(
        target.place,
        context=context,
        rows=rows,
        budget=budget,
        usual_page=target.model.config.usual_page_size,
    )
    page_size = settings.host.page_size
    draft = DraftWithPools(drafting.kind)
    runner, facts = assemble_runner(
        target.model,
        settings,
        draft=draft,
        kv_tokens=rows * (context + 2 * budget.reach(0) + 2 * page_size),
        buckets=choose_buckets(settings, draft),
        verifier=drafting.verifier,
        executor=executor,
    )
    if not target.place.reads_prompts:
        _fill_with_noise(draft, target.device)
        # The cached prompts are noise, so models without prefix caching can use them, too.
        facts = replace(facts, host=replace(facts.host, prefix_cache=True))
    return LoadedEngine(engine=BenchEngine(runner, facts), runner=runner)


def _fill_with_noise(draft: DraftWithPools, device: torch.device) -> None:
    """Fill all pages and row states with noise: reading zeros would take less power."""
    for tensor in draft.pages.tensors:
        if tensor.is_floating_point():
            tensor.normal_()
        else:
            tensor.random_(0, _FAR)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # steps run on a stream of their own


def memory_bytes(device: torch.device) -> int:
    """Memory in use on the device by all processes; on a CPU the peak of this process."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _reach_of(case: Case, steps: int, budget: Budget, step_tokens: int) -> int:
    # The first rows decode while the prompts of the other rows are read.
    prompts_a_step = min(MAX_CHUNKS, max(1, step_tokens // case.prompt))
    reading = -(-case.rows // prompts_a_step) * -(-case.prompt // step_tokens)
    return case.prompt + (reading + SKIPPED + max(steps, PROFILED) + 4) * budget.most_emitted


def _settings(
    place: Place, *, context: int, rows: int, budget: Budget, usual_page: int = USUAL_PAGE
) -> Settings:
    """The engine's settings for this place."""
    config = EngineConfig(
        dtype=place.dtype,
        device=place.device,
        execution=ExecutionConfig(
            executor=place.executor,
            deterministic=place.is_deterministic,
            record="at start" if place.captures_at_start else "lazy",
        ),
        cache=CacheConfig(prefix=not place.reads_prompts),
        limits=LimitsConfig(
            context=context,
            rows=rows,
            step_tokens=place.step_tokens + rows * budget.nodes,
            queued=2 * rows + 8,  # a load keeps a few waiting
        ),
        draft=NO_DRAFT,
    )
    num_cuda = torch.cuda.device_count()
    return resolve_settings(config, model_context=context, num_cuda=num_cuda, usual_page=usual_page)
