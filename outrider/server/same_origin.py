"""Whether a request comes from the page of another site. Browsers send such requests unasked."""

from urllib.parse import urlsplit

from fastapi import Request

from outrider.server.http_errors import ApiError


def is_from_other_site(request: Request) -> bool:
    """Whether a browser says so. Other clients send none of these headers.

    To https and localhost they say how the page and the server are related (Sec-Fetch-Site). Else
    they name the site of the page in every POST (Origin), and mostly in a GET, too (Referer).
    """
    relation = request.headers.get("sec-fetch-site")
    if relation is not None:
        return relation in ("cross-site", "same-site")
    named = request.headers.get("origin") or request.headers.get("referer")
    return named is not None and urlsplit(named).netloc != request.headers.get("host")


def refuse_other_sites(request: Request) -> None:
    """For routes without a body: a page can call these without asking the server before."""
    if is_from_other_site(request):
        raise ApiError(403, "pages of other sites may not call this route; use another client")
