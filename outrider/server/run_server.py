"""Runs a server: bind the port, load the model, print the URL, serve, drain."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from outrider.config.engine_config import LoraConfig
from outrider.config.learn_config import LearnConfig
from outrider.config.log_settings import LogSettings
from outrider.config.node_address import listen_for_nodes
from outrider.errors import ConfigError, RequestError
from outrider.frontend.images.image_prompts import PromptImages, open_image_prompts
from outrider.frontend.open_model import OpenedModel
from outrider.frontend.tokenizer.read_vocabulary import vocabulary_of
from outrider.server.answer_request import ServedModel
from outrider.server.app import make_app
from outrider.server.async_engine import AsyncEngine, AsyncEngineRules
from outrider.server.body_limits import BodyLimits
from outrider.server.call_memory import MemoryBudget
from outrider.server.heartbeat import HeartbeatLimits
from outrider.server.http_server import HttpServer, ServerEvents, ServerTimeouts
from outrider.server.idle_heap import IdleHeap
from outrider.server.learner_home import AnyLearner, NoLearner, start_learner
from outrider.server.metrics import Meter
from outrider.server.remote_engine import RemoteEngine
from outrider.server.remote_replicas import RemoteReplicas
from outrider.server.request_traces import open_tracer
from outrider.server.routes.adapter_routes import load_adapter
from outrider.server.served_adapters import ServedAdapters
from outrider.server.status_log import log_status
from outrider.server.supervisor import Supervisor
from outrider.server.web_settings import WebSettings
from outrider.server.worker_plans import check_same_devices, plan_workers
from outrider.structured.grammar_cache import MAX_PENDING, GrammarCache, Grammars
from outrider.wire.runner_facts import OnProgress, RunnerFacts

# Kernel buffer per client. By default a client that does not read takes megabytes.
_SEND_BYTES = 2**17
_UNBOUNDED = 2**31  # requests that may wait in the worker: the server bounds them before


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """The address to listen on, and the limits of requests."""

    host: str
    port: int  # 0 takes a free one
    api_key: str  # empty for none
    model: ServedModel
    max_queued: int
    body: BodyLimits  # of one request
    request_bytes: int  # that all requests together may take in the server
    timeouts: ServerTimeouts
    web: WebSettings
    log: LogSettings
    rules: AsyncEngineRules
    learn: LearnConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """What is shown while the server starts."""

    loading: OnProgress
    ready: Callable[[str, Sequence[RunnerFacts]], None]  # with the URL; a fact per replica


def run_server(settings: ServeSettings, opened: OpenedModel, display: Display) -> None:
    """Serve a model until a signal. After the first one, running answers still finish."""
    listener = _bind(settings.host, settings.port)  # first: a port in use is a quick error
    config = opened.config
    nodes = config.parallel.nodes
    node_listener = listen_for_nodes(nodes) if nodes.num > 1 else None
    supervisors = [
        Supervisor(
            opened.folder,
            plan,
            display.loading,
            limits=HeartbeatLimits(step_s=settings.timeouts.worker_s),
            log=settings.log,
            # It lives as long as the server: between two workers the other machines wait there.
            listener_fd=None if node_listener is None else node_listener.fileno(),
        )
        for plan in plan_workers(
            replace(config, limits=replace(config.limits, queued=_UNBOUNDED)), os.environ
        )
    ]
    asyncio.run(_serve(settings, supervisors, opened, listener, display))


async def _serve(
    settings: ServeSettings,
    supervisors: Sequence[Supervisor],
    opened: OpenedModel,
    listener: socket.socket,
    display: Display,
) -> None:
    tokenizer = opened.tokenizer
    tracer = open_tracer(settings.web.otlp_traces_endpoint, settings.model.name)
    learner: AnyLearner = NoLearner()
    try:
        # First: a head that cannot be trained is a quick error.
        learner = await start_learner(settings.learn, opened, settings.log, supervisors)
        images = _open_images(opened)
        all_facts = await asyncio.gather(*(each.start() for each in supervisors))
        facts, meter = all_facts[0], Meter(settings.model.name)
        check_same_devices(all_facts)
        grammars = GrammarCache(
            lambda: vocabulary_of(tokenizer), vocab_size=facts.vocab_size, max_pending=MAX_PENDING
        )
        replicas = _open_replicas(settings, all_facts, grammars, meter)
        async_engine = AsyncEngine(replicas, tokenizer, meter, settings.rules, tracer, await images)
        model = replace(
            settings.model,
            sampling_defaults=opened.sampling_defaults,
            pooling=opened.pooling,
            adapters=ServedAdapters(is_enabled=opened.config.lora.is_enabled),
        )
        server = _open_server(
            settings,
            async_engine,
            model,
            ready=lambda: display.ready(_url(listener, settings.web), all_facts),
        )
        runs = zip(supervisors, async_engine.replicas, strict=True)
        supervising = asyncio.gather(*(each.run(replica) for each, replica in runs))
        reporting = asyncio.create_task(log_status(meter))
        learner.attach(async_engine, supervisors[0])
        # Without a worker no request could be answered.
        supervising.add_done_callback(lambda _: server.end_now())
        await _load_adapters(async_engine, model, opened.config.lora)
        await server.serve([listener])
        reporting.cancel()
        supervising.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await supervising
        grammars.close()
    finally:
        tracer.close()
        await learner.stop()
        await asyncio.gather(*(each.stop() for each in supervisors))


def _open_replicas(
    settings: ServeSettings, all_facts: Sequence[RunnerFacts], grammars: Grammars, meter: Meter
) -> RemoteReplicas:
    return RemoteReplicas(
        [
            RemoteEngine(each, grammars=grammars, max_queued=settings.max_queued, meter=meter)
            for each in all_facts
        ]
    )


def _open_images(opened: OpenedModel) -> asyncio.Task[PromptImages]:
    """Models that read images import transformers, while the workers load."""
    images = asyncio.to_thread(
        open_image_prompts, opened.folder, opened.vision, opened.image_limits
    )
    return asyncio.create_task(images)


async def _load_adapters(async_engine: AsyncEngine, model: ServedModel, config: LoraConfig) -> None:
    """Load the adapters that the server starts with; it ends if one cannot be used."""
    for name, path in config.modules:
        try:
            await load_adapter(async_engine, model, name, path)
        except RequestError as error:
            raise ConfigError(f"--lora-modules {name}: {error}") from error


def _open_server(
    settings: ServeSettings,
    async_engine: AsyncEngine,
    model: ServedModel,
    *,
    ready: Callable[[], None],
) -> HttpServer:
    app = make_app(
        async_engine,
        model,
        api_key=settings.api_key,
        body=settings.body,
        memory=MemoryBudget(settings.request_bytes, on_idle=IdleHeap().note_idle),
        web=settings.web,
    )
    return HttpServer(
        app,
        ServerEvents(ready=ready, leaving=async_engine.leave, draining=async_engine.drain),
        timeouts=settings.timeouts,
        web=settings.web,
    )


def _url(listener: socket.socket, web: WebSettings) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{web.scheme}://{shown}:{port}"


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)  # inherited
        listener.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port} ({error.strerror}); change --port or --host"
        ) from error
    return listener
