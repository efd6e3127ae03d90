"""Fields by which routers split a request between a prefill and a decode server.

SGLang's routers send the same body to both and name a room. vLLM's ask the prefill server first,
and pass what it answers on to the decode server.
"""

import secrets
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import Field, model_validator

from outrider.config.engine_config import WHOLE_REQUESTS, DisaggregationConfig
from outrider.errors import RequestError
from outrider.frontend.call_cost import PromptRequest
from outrider.frontend.prompts import TokenPrompt
from outrider.server.http_errors import unsupported
from outrider.server.protocol.neutral_fields import RequestBody
from outrider.server.protocol.usage_fields import UsageFields, usage_of
from outrider.server.request_handle import RequestHandle
from outrider.wire.transfer_order import MAX_ROOM_CHARS, NO_TRANSFER, TransferOrder

Item = TypeVar("Item")
MAX_HOST_CHARS = 253  # as in DNS
Rooms = Annotated[list[Item], Field(fail_fast=True)]
Port = Annotated[int, Field(gt=0, lt=2**16)]
Host = Annotated[str, Field(max_length=MAX_HOST_CHARS)]
_WILDCARDS = ("", "0.0.0.0", "::")
_ANY_PROMPT = TokenPrompt((0,))


class TransferFields(RequestBody):
    """SGLang's bootstrap fields, a room for each prompt; and vLLM's parameters."""

    bootstrap_host: Host | Rooms[Host | None] | None = None
    bootstrap_port: Port | Rooms[Port | None] | None = None
    bootstrap_room: int | Rooms[int] | None = None
    kv_transfer_params: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_min_tokens(cls, body: Any) -> Any:
        """The minimum of an answer is for the server that decodes it.

        vLLM's routers ask the prefill server for one token. Some add a minimum of one, on routes
        that have no such field too; others leave the client's, which one token would contradict.
        """
        if not isinstance(body, dict) or not _is_decoded_elsewhere(body.get("kv_transfer_params")):
            return body
        return {name: value for name, value in body.items() if name != "min_tokens"}

    @property
    def is_decoded_elsewhere(self) -> bool:
        """Whether one of vLLM's routers asks for the prefill alone."""
        return _is_decoded_elsewhere(self.kv_transfer_params)

    @property
    def is_split(self) -> bool:
        """Whether a router has sent a part of the work elsewhere."""
        return self.bootstrap_room is not None or bool(self.kv_transfer_params)

    def split(
        self, role: DisaggregationConfig, requests: Sequence[PromptRequest]
    ) -> Sequence[PromptRequest]:
        """The requests with what this server does of each, by its role."""
        if not self.is_split:
            return requests
        if role.mode == "null":
            raise unsupported(*2 * (_name_of(self),))
        orders = self._orders(role, len(requests))
        part_of = _decoded_part if role.mode == "decode" else _prefilled_part
        return [part_of(each, order) for each, order in zip(requests, orders, strict=True)]

    def _orders(self, role: DisaggregationConfig, num_prompts: int) -> list[TransferOrder]:
        if self.bootstrap_room is not None:
            rooms = _each("bootstrap_room", self.bootstrap_room, num_prompts)
            if len(set(rooms)) < len(rooms):
                raise RequestError(
                    "bootstrap_room must be a list with a room of its own per prompt"
                )
            columns = zip(
                rooms,
                _each("bootstrap_host", self.bootstrap_host, num_prompts),
                _each("bootstrap_port", self.bootstrap_port, num_prompts),
                strict=True,
            )
            return [_room_order(role, *column) for column in columns]
        params = self.kv_transfer_params or {}
        if role.mode == "prefill":
            base = secrets.token_hex(16)
            return [_offer(role, f"{base}-{place}") for place in range(num_prompts)]
        if not params.get("do_remote_prefill"):
            return [NO_TRANSFER] * num_prompts
        return [_fetch(params, place) for place in range(num_prompts)]


def _is_decoded_elsewhere(params: Any) -> bool:
    return isinstance(params, dict) and bool(params.get("do_remote_decode"))


def _decoded_part(request: PromptRequest, order: TransferOrder) -> PromptRequest:
    """Transfers name prompts by their tokens: others are computed by the server that decodes."""
    return replace(request, transfer=order) if request.prompt.is_plain else request


def _prefilled_part(request: PromptRequest, order: TransferOrder) -> PromptRequest:
    """The decode server chooses all tokens: neither choices nor grammars matter here.

    Nor do prompts that the decode server computes: one token is answered in their place, because
    routers give a request up if this server refuses it.
    """
    plain = replace(
        request.params, n=1, max_tokens=1, min_tokens=0, structured=None, prompt_logprobs=None
    )
    if not request.prompt.is_plain:
        return replace(request, prompt=_ANY_PROMPT, params=plain)
    return replace(request, params=plain, transfer=order)


def _name_of(body: TransferFields) -> str:
    return "kv_transfer_params" if body.bootstrap_room is None else "bootstrap_room"


def _each(name: str, given: Any, num_prompts: int) -> list[Any]:
    """A value for every prompt, from a list or from one value for all."""
    values = given if isinstance(given, list) else [given] * num_prompts
    if len(values) != num_prompts:
        raise RequestError(f"{len(values)} {name} for {num_prompts} prompts")
    return values


def _room_order(
    role: DisaggregationConfig, room: int, host: str | None, port: int | None
) -> TransferOrder:
    if role.mode == "prefill":
        return _offer(role, str(room))
    if not host:
        raise RequestError("bootstrap_room needs bootstrap_host, the host of the prefill server")
    usual = WHOLE_REQUESTS.port  # a router that was given no port sends none
    return TransferOrder(kind="fetch", room=str(room), host=host, port=port or usual)


def _offer(role: DisaggregationConfig, room: str) -> TransferOrder:
    own = socket.gethostname() if role.host in _WILDCARDS else role.host
    host = role.advertised_host or own
    return TransferOrder(kind="offer", room=room, host=host, port=role.port)


def _fetch(params: dict[str, Any], place: int) -> TransferOrder:
    """The order that the answer of a prefill server describes."""
    name, host, port = (
        params.get(key) for key in ("remote_request_id", "remote_host", "remote_port")
    )
    is_named = isinstance(name, str) and isinstance(host, str) and bool(host)
    if not (is_named and isinstance(port, int) and 0 < port < 2**16):
        raise RequestError(
            "kv_transfer_params must be what the prefill server answered, with "
            "remote_request_id, remote_host and remote_port"
        )
    room = f"{name}-{place}"
    if len(room) > MAX_ROOM_CHARS or len(str(host)) > MAX_HOST_CHARS:
        raise RequestError("kv_transfer_params has a name that is too long")
    return TransferOrder(kind="fetch", room=room, host=str(host), port=port)


def offered_params(body: TransferFields, handle: RequestHandle) -> dict[str, Any]:
    """What a prefill server answers besides the usual fields, for vLLM's routers."""
    orders = [request.prepared.transfer for request in handle.requests]
    offers = [order for order in orders if order.kind == "offer"]
    if not offers or not body.kv_transfer_params:
        return {}
    order = offers[0]  # all have its address and its name but for the place of their prompt
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": f"{order.host}:{order.port}",
        "remote_request_id": order.room.rpartition("-")[0],
        "remote_host": order.host,
        "remote_port": order.port,
        "remote_block_ids": [],  # the side channel names them
        "tp_size": 1,
    }
    return {"kv_transfer_params": params}


def has_read_prompts(body: TransferFields, handle: RequestHandle) -> bool:
    """Whether this server has read the prompts, or answers in place of the one that decodes."""
    kinds = {request.prepared.transfer.kind for request in handle.requests}
    return "none" not in kinds or not body.is_decoded_elsewhere


def usage_to_tell(body: TransferFields, handle: RequestHandle) -> UsageFields | None:
    """The usage, or nothing: vllm-router replaces the prompt's counts by those told here."""
    return usage_of(handle.requests) if has_read_prompts(body, handle) else None
