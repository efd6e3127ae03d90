"""Spans of requests for OpenTelemetry, with vLLM's names; sent to `--otlp-traces-endpoint`."""

import logging
import time
from contextvars import ContextVar
from typing import Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.config.install_hint import install_hint
from outrider.errors import ConfigError
from outrider.frontend.request_state import RequestState

_log = logging.getLogger(__name__)
_WANTED = ("traceparent", "tracestate")
_headers: ContextVar[dict[str, str]] = ContextVar("trace headers of the HTTP request")


class RequestTracer(Protocol):
    """Reports requests that have ended."""

    def note_request(self, request: RequestState) -> None: ...

    def close(self) -> None:
        """Send what has not been sent."""
        ...


class NoTracer:
    """Reports nothing."""

    def note_request(self, request: RequestState) -> None:
        del request

    def close(self) -> None:
        pass


def open_tracer(endpoint: str, model_name: str) -> RequestTracer:
    """The tracer of a server; without an endpoint it reports nothing."""
    return OtlpTracer(endpoint, model_name) if endpoint else NoTracer()


class OtlpTracer:
    """Owns the exporter, which sends spans in a thread of its own."""

    def __init__(self, endpoint: str, model_name: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import (
                TraceContextTextMapPropagator,
            )
        except ImportError as error:
            raise ConfigError(
                f"--otlp-traces-endpoint needs OpenTelemetry; {install_hint('otel')}"
            ) from error
        self._model = model_name
        self._provider = TracerProvider(resource=Resource.create({"service.name": "outrider"}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("outrider")
        self._propagator = TraceContextTextMapPropagator()
        _log.info("sending traces to %s", endpoint)

    def note_request(self, request: RequestState) -> None:
        ended_ns = time.time_ns()
        span = self._tracer.start_span(
            "llm_request",
            context=self._propagator.extract(_headers.get({})),
            attributes=self._attributes(request),
            start_time=ended_ns - int(request.timing.total_s * 1e9),
        )
        span.end(ended_ns)

    def close(self) -> None:
        self._provider.shutdown()

    def _attributes(self, request: RequestState) -> dict[str, Any]:
        usage, timing, params = request.usage, request.timing, request.prepared.params
        progress = [output.progress for output in request.outputs]
        return {
            "gen_ai.response.model": self._model,
            "gen_ai.request.id": request.request_id,
            "gen_ai.request.temperature": float(params.temperature),
            "gen_ai.request.top_p": float(params.top_p),
            "gen_ai.request.n": params.n,
            "gen_ai.usage.prompt_tokens": usage.prompt_tokens,
            "gen_ai.usage.completion_tokens": usage.completion_tokens,
            "gen_ai.usage.num_sequences": len(request.outputs),
            "gen_ai.latency.time_in_queue": request.outputs[0].queued_s,
            "gen_ai.latency.time_to_first_token": timing.first_token_s,
            "gen_ai.latency.e2e": timing.total_s,
            "outrider.drafted_tokens": sum(each.drafted for each in progress),
            "outrider.accepted_tokens": sum(each.num_accepted for each in progress),
            "outrider.finish_reason": request.outputs[0].ending.finish,
        }


class TraceHeadersMiddleware:
    """Keeps the trace headers of an HTTP request for the span of its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            named = ((name.decode("latin-1"), value) for name, value in scope["headers"])
            found = {name: value.decode("latin-1") for name, value in named if name in _WANTED}
            _headers.set(found)
        await self._app(scope, receive, send)
