"""The side channel of a prefill engine: decode engines ask here for rooms, pages and leases."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Mapping

from outrider.disaggregation.offer_board import OfferBoard, RoomState
from outrider.disaggregation.offer_key import (
    OfferKey,
    first_page_of,
    offer_key_of,
    room_of,
    rooms_of,
)
from outrider.disaggregation.page_transport import PageSource
from outrider.disaggregation.side_channel import Message, SideChannel, open_channel
from outrider.disaggregation.transfer_facts import difference
from outrider.runtime.node_connection import AUTHENTICATE_S, authenticate

_ROOM_WAIT_S = 0.02  # that one question waits for an offer; new rooms of a reader wait as long
_MAX_CONNECTIONS = 1024
_MAX_STRANGERS = 128  # connections that have not proved yet that they know the secret
_PAUSE_S = 0.1  # after a connection that could not be accepted
_IDLE_S = 3600.0  # after which a silent decode engine must connect again

_log = logging.getLogger(__name__)


class PrefillServer:
    """Owns the listener, and a thread for each connection."""

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        *,
        board: OfferBoard,
        source: PageSource,
        facts: Mapping[str, str],
    ) -> None:
        self._listener = listener
        self._key = key
        self._board = board
        self._source = source
        self._facts = facts
        self._is_closed = False
        self._room = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._strangers = threading.BoundedSemaphore(_MAX_STRANGERS)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True, name="side channel").start()

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError as error:  # closed; or a peer left at once, or no file number is free
                if self._is_closed:
                    return
                _log.error("the side channel did not accept a connection: %s", error)
                time.sleep(_PAUSE_S)
                continue
            self._start(link)

    def _start(self, link: socket.socket) -> None:
        if not self._strangers.acquire(blocking=False):
            link.close()
            return
        try:
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()
        except RuntimeError as error:  # there are too many threads
            _log.error("the side channel cannot serve a connection: %s", error)
            self._strangers.release()
            link.close()

    def _serve(self, link: socket.socket) -> None:
        """Answer one decode engine until it leaves. What it sends wrongly ends its connection."""
        channel = self._open(link)
        if channel is None:
            link.close()
        elif not self._room.acquire(blocking=False):
            channel.close()
        else:
            try:
                self._converse(channel)
            finally:
                self._room.release()

    def _open(self, link: socket.socket) -> SideChannel | None:
        """The channel to a peer that knows the secret. Strangers take no place of such peers."""
        try:
            opened = authenticate(link, self._key)
            if opened is None:
                return None
            return open_channel(opened, self._key, "prefill", stall_s=AUTHENTICATE_S)
        except OSError as error:
            _log.debug("a decode engine left before it was greeted: %s", error)
            return None
        finally:
            self._strangers.release()

    def _converse(self, channel: SideChannel) -> None:
        try:
            if self._greet(channel):
                channel.wait_up_to(_IDLE_S)
                while True:
                    self._answer(channel, channel.receive())
        except (OSError, TypeError, ValueError) as error:
            _log.debug("a decode engine left: %s", error)
        finally:
            channel.close()

    def _greet(self, channel: SideChannel) -> bool:
        """Whether the decode engine has the same model, cut in the same pages."""
        theirs = channel.receive().get("facts")
        if not isinstance(theirs, dict):
            raise ValueError("the first message has no facts")
        reason = difference(theirs, self._facts)
        if reason:
            _log.error("a decode engine was refused: %s", reason)
            channel.send({"refused": reason})
            return False
        channel.send({"refused": "", **self._source.describe()})
        return True

    def _answer(self, channel: SideChannel, message: Message) -> None:
        if message.get("kind") == "watch":
            channel.send({"states": self._watch(message)})
            return
        key = offer_key_of(message)
        match message.get("kind"):
            case "state":
                channel.send(self._state(room_of(message)))
            case "hold":
                channel.send({"is_held": self._board.hold(key) is not None})
            case "confirm":
                channel.send({"is_held": self._board.confirm(key)})
            case "row":
                self._send_row(channel, key)
            case "read":
                self._send_pages(channel, key, first_page_of(message))
            case kind:
                raise ValueError(f"a message of kind {kind!r} is unknown")

    def _watch(self, message: Message) -> list[RoomState]:
        rooms, held = rooms_of(message, "rooms"), rooms_of(message, "held")
        return self._board.watch(rooms, held=held, wait_s=_ROOM_WAIT_S)

    def _state(self, room: str) -> Message:
        offer = self._board.find(room)
        if offer is None:
            return {"state": "ended"}
        prompt = offer.prompt
        return {
            "state": "offered",
            "nonce": offer.key.nonce,
            "digest": prompt.digest,
            "num_tokens": prompt.num_tokens,
            "pages": prompt.pages,
        }

    def _send_pages(self, channel: SideChannel, key: OfferKey, first: int) -> None:
        offer = self._board.hold(key)
        if offer is None or not 0 <= first <= len(offer.prompt.pages):
            channel.send({"is_held": False})
            return
        channel.send({"is_held": True})
        self._source.send(channel, key, offer.prompt, first=first)

    def _send_row(self, channel: SideChannel, key: OfferKey) -> None:
        offer = self._board.hold(key)
        if offer is None:
            channel.send({"is_held": False})
            return
        channel.send({"is_held": True, "num_bytes": offer.row_image.numel()})
        channel.send_tensor(offer.row_image)
