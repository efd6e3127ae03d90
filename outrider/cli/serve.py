"""`outrider serve`: an OpenAI-compatible server for one model."""

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from outrider.cli.flags import DraftFlags, expand_flags
from outrider.cli.model_flags import ModelArgument, ModelFlags
from outrider.config.engine_config import (
    WHOLE_REQUESTS,
    DisaggregationConfig,
    EngineConfig,
    RoleMode,
    TransferBackend,
)
from outrider.config.install_hint import install_hint
from outrider.config.kv_events_config import parse_kv_events
from outrider.config.learn_config import NEWEST, LearnConfig, check_learning
from outrider.config.log_settings import LogFormat, LogLevel, LogSettings
from outrider.config.lora_checks import check_lora, parse_module
from outrider.config.parallel_checks import check_parallel
from outrider.config.role_checks import check_role
from outrider.errors import ConfigError
from outrider.hub.pooling_config import parse_pooler

if TYPE_CHECKING:
    from outrider.frontend.open_model import ModelChoice
    from outrider.server.run_server import ServeSettings
    from outrider.server.web_settings import WebSettings

_NEEDED = ("fastapi", "uvicorn", "zmq", "msgspec", "prometheus_client")


def _flag(
    text: str, *, envvar: str | None = None, least: int | None = None, most: int | None = None
) -> Any:
    return typer.Option(help=text, rich_help_panel="Server", envvar=envvar, min=least, max=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlags:
    """Where the server listens, and which requests it accepts."""

    host: Annotated[str, _flag("Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[int, _flag("Port to listen on; 0 for a free one.")] = 8000
    api_key: Annotated[
        str, _flag("What clients must send as a bearer token.", envvar="OUTRIDER_API_KEY")
    ] = ""
    served_model_name: Annotated[
        str, _flag("What clients call the model; default: its own name.")
    ] = ""
    reasoning_parser: Annotated[
        str, _flag("How reasoning is written: deepseek_r1, qwen3, glm45 or gpt_oss.")
    ] = ""
    tool_call_parser: Annotated[
        str,
        _flag(
            "How tool calls are written: hermes, llama3_json, mistral, deepseek_v3, glm45, "
            "pythonic or gpt_oss."
        ),
    ] = ""
    max_queued: Annotated[int, _flag("Requests that may wait; more get 429.", least=0)] = 1024
    request_body: Annotated[
        int, _flag("MiB that the body of a request may have.", least=1, most=64)
    ] = 8
    request_memory: Annotated[
        int, _flag("MiB that all requests together may take in the server.", least=1)
    ] = 2048
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"], _flag("Whether requests may set a priority.")
    ] = "fcfs"
    pooler_config: Annotated[
        str, _flag("How /v1/embeddings pools: JSON of vLLM; default: as the model's files say.")
    ] = ""
    is_embedding: Annotated[
        bool, _flag("SGLang's, without effect: every model answers /v1/embeddings.")
    ] = False
    enable_prompt_embeds: Annotated[bool, _flag("Let completions have prompt_embeds.")] = False
    enable_return_hidden_states: Annotated[
        bool, _flag("Let requests have return_hidden_states.")
    ] = False
    stream_ping_s: Annotated[
        float, _flag("Seconds of silence after which a stream sends a comment.")
    ] = 15.0
    worker_timeout: Annotated[
        float, _flag("Seconds in one step after which the engine's worker is replaced.")
    ] = 300.0
    client_timeout: Annotated[
        float, _flag("Seconds after which a client that does not send or read is cut off.")
    ] = 60.0
    shutdown_delay: Annotated[
        float, _flag("Seconds after a signal in which requests are still taken.", least=0)
    ] = 0.0
    shutdown_grace: Annotated[
        float, _flag("Seconds that running answers have after a signal to end.")
    ] = 30.0

    ssl_keyfile: Annotated[str, _flag("Key of the certificate, for HTTPS.")] = ""
    ssl_certfile: Annotated[str, _flag("PEM file of the certificate.")] = ""
    log_level: Annotated[LogLevel, _flag("What is logged: info has a line per request.")] = "info"
    log_format: Annotated[LogFormat, _flag("json: one object per line.")] = "text"
    access_log: Annotated[bool, _flag("A log line for every request.")] = True
    otlp_traces_endpoint: Annotated[
        str, _flag("URL for OpenTelemetry spans, such as http://localhost:4318/v1/traces.")
    ] = ""
    root_path: Annotated[str, _flag("Path prefix that a proxy removes.")] = ""
    allowed_origins: Annotated[
        str, _flag("Origins whose pages may read answers: a JSON list, or with commas; * for all.")
    ] = ""

    disaggregation_mode: Annotated[
        RoleMode, _flag("prefill: compute prompts for others; decode: get them from there.")
    ] = "null"
    disaggregation_bootstrap_port: Annotated[
        int, _flag("Port where a prefill server waits for decode servers.", least=1)
    ] = WHOLE_REQUESTS.port
    disaggregation_host: Annotated[
        str, _flag("Name or address by which decode servers reach a prefill server.")
    ] = ""
    disaggregation_transfer_backend: Annotated[
        TransferBackend, _flag("What moves the KV of prompts between servers.")
    ] = WHOLE_REQUESTS.backend

    lora_modules: Annotated[
        list[str] | None,
        typer.Option(
            "--lora-modules",
            "--lora-paths",
            help="Adapters that are loaded at start: NAME=PATH or JSON, one or several.",
            rich_help_panel="Server",
        ),
    ] = None

    learn: Annotated[
        bool, _flag("Train the draft head on answers of this server while it is idle.")
    ] = False
    learn_folder: Annotated[
        str, _flag("Where versions of the head are written; default: in the cache.")
    ] = ""
    learn_buffer: Annotated[
        int, _flag("MiB of texts that it learns from, in memory only.", least=1)
    ] = 64
    learn_version: Annotated[
        int, _flag("Version of the head to start with, to roll back; 0: before learning.", least=-1)
    ] = NEWEST

    kv_events_config: Annotated[
        str, _flag("JSON, as in vLLM: where events of the prefix cache are published.")
    ] = ""

    @property
    def role(self) -> DisaggregationConfig:
        """Which part of requests this server computes."""
        return DisaggregationConfig(
            mode=self.disaggregation_mode,
            host=self.host,
            advertised_host=self.disaggregation_host,
            port=self.disaggregation_bootstrap_port,
            backend=self.disaggregation_transfer_backend,
        )

    @property
    def learning(self) -> LearnConfig:
        """Whether the draft head is trained, and within which bounds."""
        return LearnConfig(
            is_enabled=self.learn,
            folder=self.learn_folder,
            buffer_bytes=self.learn_buffer * 2**20,
            version=self.learn_version,
        )

    def settings(self, model: str) -> "ServeSettings":
        """The settings of a server for the model that --model names."""
        from outrider.server.answer_request import ServedModel
        from outrider.server.async_engine import AsyncEngineRules
        from outrider.server.body_limits import BodyLimits
        from outrider.server.http_server import ServerTimeouts
        from outrider.server.parsers.answer_parsers import find_parsers
        from outrider.server.run_server import ServeSettings

        return ServeSettings(
            host=self.host,
            port=self.port,
            api_key=self.api_key,
            model=ServedModel(
                name=self.served_model_name or _own_name(model),
                parsers=find_parsers(reasoning=self.reasoning_parser, calls=self.tool_call_parser),
            ),
            max_queued=self.max_queued,
            body=BodyLimits(body_bytes=self.request_body * 2**20),
            request_bytes=self.request_memory * 2**20,
            timeouts=ServerTimeouts(
                worker_s=self.worker_timeout,
                client_s=self.client_timeout,
                delay_s=self.shutdown_delay,
                grace_s=self.shutdown_grace,
            ),
            web=self.web(),
            log=LogSettings(level=self.log_level, format=self.log_format),
            rules=AsyncEngineRules(
                ping_s=self.stream_ping_s,
                has_priorities=self.scheduling_policy == "priority",
                takes_prompt_embeds=self.enable_prompt_embeds,
                returns_hidden_states=self.enable_return_hidden_states,
                role=self.role,
            ),
            learn=self.learning,
        )

    def web(self) -> "WebSettings":
        """How the server meets browsers and proxies; refused here if it cannot work."""
        from outrider.server.web_settings import WebSettings, parse_origins

        web = WebSettings(
            ssl_keyfile=self.ssl_keyfile,
            ssl_certfile=self.ssl_certfile,
            root_path=self.root_path.rstrip("/"),
            has_access_log=self.access_log,
            otlp_traces_endpoint=self.otlp_traces_endpoint,
            allowed_origins=parse_origins(self.allowed_origins),
        )
        web.check()
        return web


@expand_flags
def serve(
    model_argument: ModelArgument = None,
    *,
    model_flags: ModelFlags,
    draft_flags: DraftFlags,
    server_flags: ServerFlags,
) -> None:
    """Serve a model over HTTP."""
    for name, value in (
        ("--stream-ping-s", server_flags.stream_ping_s),
        ("--worker-timeout", server_flags.worker_timeout),
        ("--client-timeout", server_flags.client_timeout),
        ("--shutdown-grace", server_flags.shutdown_grace),
    ):
        if value <= 0:
            raise ConfigError(f"{name} must be above 0, got {value}")
    model_flags = model_flags.of(model_argument)
    config = replace(
        model_flags.engine_config(draft_flags.config()),
        disaggregation=server_flags.role,
        kv_events=parse_kv_events(server_flags.kv_events_config),
    )
    modules = tuple(parse_module(each) for each in server_flags.lora_modules or ())
    config = replace(config, lora=replace(config.lora, modules=modules))
    check_lora(config.lora)
    check_parallel(config.parallel)
    check_role(config)
    _check_installation()
    settings = server_flags.settings(model_flags.model)
    settings.log.install("server")
    choice = replace(model_flags.choice(), pooler=parse_pooler(server_flags.pooler_config))
    _serve_model(choice, config, settings)


def _serve_model(choice: "ModelChoice", config: EngineConfig, settings: "ServeSettings") -> None:
    """Find the model and its drafter, then serve them until a signal."""
    from outrider.frontend.open_model import open_model
    from outrider.hub.download_bars import BarReporter
    from outrider.server.run_server import run_server
    from outrider.server.start_progress import terminal_display

    opened = open_model(choice, config, BarReporter())
    if settings.learn.is_enabled:
        check_learning(opened.config)
    if opened.config.parallel.nodes.rank:
        from outrider.runtime.follow_node import follow_node

        follow_node(opened.folder, opened.config)
        return
    with terminal_display(settings.model.name) as display:
        run_server(settings, opened, display)


def _own_name(model: str) -> str:
    """The name of the model. Of a path only the last part, so clients see no folders."""
    return Path(model).resolve().name if Path(model).exists() else model


def _check_installation() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the server needs {', '.join(missing)}; install it with {install_hint('serve')}"
        )
