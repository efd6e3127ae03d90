"""The chat page at `/`: files of the package that load nothing from other hosts."""

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

from outrider.server.http_errors import ApiError

_FOLDER = Path(__file__).parent.parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # browsers ask again, so they see a new version at once
}


def page_routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    files = {path.name: path for path in _FOLDER.iterdir() if path.suffix in _TYPES}
    answers = {name: _answer(path) for name, path in files.items()}

    @router.get("/")
    async def page() -> Response:
        return answers["index.html"]

    @router.get("/page/{name}")
    async def part(name: str) -> Response:
        if name not in answers:
            raise ApiError(404, f"the page has no part {name!r}")
        return answers[name]

    return router


def _answer(path: Path) -> Response:
    return Response(path.read_bytes(), headers=_HEADERS, media_type=_TYPES[path.suffix])
