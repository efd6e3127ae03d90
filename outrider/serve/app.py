"""The web application: its routes, and what stands in front of them."""

from fastapi import FastAPI

from outrider import __version__
from outrider.serve.auth import KeyMiddleware
from outrider.serve.conduct import ServedModel
from outrider.serve.desk import Desk
from outrider.serve.errors import install_handlers
from outrider.serve.limits import BodyLimits, LimitsMiddleware
from outrider.serve.routes.chat import chat_routes
from outrider.serve.routes.completions import completion_routes
from outrider.serve.routes.health import health_routes
from outrider.serve.routes.models import model_routes
from outrider.serve.routes.native import native_routes
from outrider.serve.routes.page import page_routes
from outrider.serve.routes.responses import responses_routes
from outrider.serve.routes.tokens import token_routes


def make_app(desk: Desk, model: ServedModel, *, api_key: str) -> FastAPI:
    """The application over one engine; an empty key lets everybody in."""
    app = FastAPI(title="Outrider", version=__version__)
    install_handlers(app)
    for router in (
        chat_routes(desk, model),
        completion_routes(desk, model),
        responses_routes(desk, model),
        model_routes(desk, model),
        token_routes(desk, model),
        native_routes(desk, model),
        health_routes(desk),
        page_routes(),
    ):
        app.include_router(router)
    app.add_middleware(LimitsMiddleware, limits=BodyLimits())
    if api_key:
        app.add_middleware(KeyMiddleware, key=api_key)  # the outermost: strangers cost nothing
    return app
