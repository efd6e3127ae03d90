"""The web application: its routes and middleware."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from outrider import __version__
from outrider.server.access_log import AccessLogMiddleware
from outrider.server.answer_request import ServedModel
from outrider.server.async_engine import AsyncEngine
from outrider.server.auth import KeyMiddleware
from outrider.server.body_limits import BodyLimits, HeaderLimitsMiddleware
from outrider.server.call_memory import CallMemoryMiddleware, MemoryBudget
from outrider.server.http_errors import install_handlers
from outrider.server.request_traces import TraceHeadersMiddleware
from outrider.server.routes.adapter_routes import adapter_routes
from outrider.server.routes.chat_routes import chat_routes
from outrider.server.routes.completions_routes import completion_routes
from outrider.server.routes.control_routes import control_routes
from outrider.server.routes.docs_routes import docs_routes
from outrider.server.routes.embeddings_routes import embeddings_routes
from outrider.server.routes.health_routes import health_routes
from outrider.server.routes.learn_routes import learn_routes
from outrider.server.routes.load_routes import load_routes
from outrider.server.routes.messages_routes import messages_routes
from outrider.server.routes.models_routes import model_routes
from outrider.server.routes.ollama_routes import ollama_routes
from outrider.server.routes.page_routes import page_routes
from outrider.server.routes.responses_routes import responses_routes
from outrider.server.routes.sglang_routes import native_routes
from outrider.server.routes.tokenize_routes import token_routes
from outrider.server.web_settings import WebSettings


def make_app(
    async_engine: AsyncEngine,
    model: ServedModel,
    *,
    api_key: str,
    body: BodyLimits,
    memory: MemoryBudget,
    web: WebSettings,
) -> FastAPI:
    """The application over one engine. An empty key means that clients need none."""
    app = FastAPI(title="Outrider", version=__version__, docs_url=None, redoc_url=None)
    app.state.body_limits = body
    install_handlers(app)
    for router in (
        chat_routes(async_engine, model),
        completion_routes(async_engine, model),
        embeddings_routes(async_engine, model),
        responses_routes(async_engine, model),
        model_routes(async_engine, model),
        token_routes(async_engine, model),
        native_routes(async_engine, model),
        messages_routes(async_engine, model),
        ollama_routes(async_engine, model),
        health_routes(async_engine),
        load_routes(async_engine),
        control_routes(async_engine),
        learn_routes(async_engine),
        adapter_routes(async_engine, model),
        page_routes(),
        docs_routes("Outrider"),
    ):
        app.include_router(router)
    app.add_middleware(CallMemoryMiddleware, budget=memory)
    app.add_middleware(HeaderLimitsMiddleware, limits=body)
    if api_key:
        app.add_middleware(KeyMiddleware, key=api_key)  # outermost: no work for a wrong key
    if web.allowed_origins:  # even before the key: browsers ask without one, and read refusals
        app.add_middleware(
            CORSMiddleware,
            allow_origins=web.allowed_origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    if web.otlp_traces_endpoint:
        app.add_middleware(TraceHeadersMiddleware)
    if web.has_access_log:
        app.add_middleware(AccessLogMiddleware)
    return app
