"""The interactive reference at `/docs`: Swagger's files come from this server, not from a CDN."""

from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, Response

from outrider.config.install_hint import install_hint
from outrider.server.http_errors import ApiError

_TYPES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}


def docs_routes(title: str) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    folder = _assets()

    @router.get("/docs")
    async def docs(request: Request) -> Response:
        if folder is None:
            raise ApiError(404, f"/docs needs Swagger's files: {install_hint('serve')}")
        root = request.scope.get("root_path", "")
        return get_swagger_ui_html(
            openapi_url=f"{root}/openapi.json",
            title=title,
            swagger_js_url=f"{root}/docs/swagger-ui-bundle.js",
            swagger_css_url=f"{root}/docs/swagger-ui.css",
            swagger_favicon_url="data:,",
        )

    @router.get("/docs/{name}")
    async def asset(name: str) -> Response:
        if folder is None or name not in _TYPES:
            raise ApiError(404, f"/docs has no part {name!r}")
        return FileResponse(folder / name, media_type=_TYPES[name])

    return router


def _assets() -> Path | None:
    """The folder of Swagger's files; they come with a small package."""
    found = find_spec("fastapi_offline")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "static"
