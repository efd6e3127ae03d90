"""Whether a request comes from the page of another site. Browsers send such requests unasked."""

from urllib.parse import urlsplit

from fastapi import Request

from outrider.server.http_errors import ApiError


def is_from_other_site(request: Request) -> bool:
    """Browsers name the site of a page in every POST; other clients send no origin."""
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host")


def refuse_other_sites(request: Request) -> None:
    """For routes without a body: a page can call these without asking the server before."""
    if is_from_other_site(request):
        raise ApiError(403, "pages of other sites may not call this route; use another client")
