"""Where the KV of a prompt goes to, or comes from, when two engines share a request."""

from dataclasses import dataclass
from typing import Literal

MAX_ROOM_CHARS = 128
TransferSide = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferOrder:
    """One engine computes the prompt and offers its KV in a room; the other fetches it there."""

    kind: Literal["none", "offer", "fetch"]
    room: str = ""  # the name of the transfer, which both engines know
    host: str = ""  # of the engine that offers
    port: int = 0

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port


NO_TRANSFER = TransferOrder(kind="none")
