"""Reads the server's list of models, and its counters before and after a run."""

from typing import Any

import aiohttp

from outrider.bench.serve.request_outcome import Failure
from outrider.bench.serve.serve_args import Endpoint
from outrider.bench.serve.server_acceptance import ServerAcceptance, read_counters
from outrider.errors import ConfigError

_CONNECT_S = 10.0
_SHORT = aiohttp.ClientTimeout(total=_CONNECT_S)


async def find_model(
    session: aiohttp.ClientSession, endpoint: Endpoint, models: tuple[str, ...]
) -> str:
    """The named model, or else the server's only one. Fails if no server answers."""
    served = await list_served_models(session, endpoint)
    if models:
        return models[0]  # even if it is not listed: servers have aliases and adapters
    if len(served) != 1:
        has = f"it has {', '.join(served)}" if served else "it does not list any"
        raise ConfigError(f"the server does not name one model; {has}; give --model")
    return served[0]


async def list_served_models(session: aiohttp.ClientSession, endpoint: Endpoint) -> tuple[str, ...]:
    """The names a server lists; none where it has no such route."""
    url = endpoint.base_url + "/v1/models"
    try:
        async with session.get(url, timeout=_SHORT) as response:
            if response.status in (401, 403):
                raise ConfigError(_explain_key(endpoint))
            if response.status != 200:
                return ()
            content: Any = await response.json(content_type=None)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ConfigError(_explain_silence(endpoint, str(error))) from error
    except ValueError:
        return ()
    listed = content.get("data") if isinstance(content, dict) else None
    cards = [card for card in listed or () if isinstance(card, dict)]
    return tuple(card["id"] for card in cards if isinstance(card.get("id"), str))


async def scrape(
    session: aiohttp.ClientSession, endpoint: Endpoint
) -> tuple[ServerAcceptance, ...]:
    """The counters of drafts; nothing where the server has none or does not show them."""
    try:
        async with session.get(endpoint.base_url + "/metrics", timeout=_SHORT) as response:
            text = await response.text(errors="replace")
            return read_counters(text) if response.status == 200 else ()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return ()  # the report then has no acceptance


def explain_failure(failure: Failure, endpoint: Endpoint, model: str) -> str:
    """One line that says what failed and which flag or command helps."""
    match failure.kind:
        case "no connection":
            return _explain_silence(endpoint, failure.message)
        case "http 401" | "http 403":
            return _explain_key(endpoint)
        case "http 404":
            return (
                f"the server has no model {model!r} or no {endpoint.url} ({failure.message}); "
                "check --model and --endpoint"
            )
        case _:
            return f"{endpoint.url} failed with {failure.kind}: {failure.message}"


def _explain_key(endpoint: Endpoint) -> str:
    state = "does not take this key" if endpoint.api_key else "wants a key"
    return f"{endpoint.base_url} {state}; give the right one with --api-key"


def _explain_silence(endpoint: Endpoint, reason: str) -> str:
    return (
        f"no server answers at {endpoint.base_url} ({reason or 'no answer in time'}); start one, "
        "such as outrider serve, or correct --base-url"
    )
