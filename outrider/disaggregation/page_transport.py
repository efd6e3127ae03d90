"""How page bytes come from the memory of one engine into that of another."""

from collections.abc import Sequence
from typing import Any, Protocol

from outrider.disaggregation.offer_key import OfferKey
from outrider.disaggregation.side_channel import Message, SideChannel
from outrider.wire.kv_transfer import SharedPrompt


class PageSource(Protocol):
    """The side that has the pages."""

    def describe(self) -> dict[str, Any]:
        """What a reader must know, once for each connection."""
        ...

    def send(
        self, channel: SideChannel, key: OfferKey, prompt: SharedPrompt, *, first: int
    ) -> None:
        """Send the pages from `first` on to a reader that asked for them on the channel."""
        ...


class PageRead(Protocol):
    """One read into pages of this engine."""

    @property
    def num_bytes(self) -> int:
        """Bytes that do not come over the side channel, which counts its own."""
        ...

    def is_done(self) -> bool:
        """Whether all bytes are there; raises OSError if they cannot come."""
        ...

    def is_over(self) -> bool:
        """Whether nothing writes the pages any more, however the read went."""
        ...


class PageSink(Protocol):
    """The side that reads."""

    def read(
        self,
        channel: SideChannel,
        welcome: Message,
        key: OfferKey,
        theirs: Sequence[int],
        ours: Sequence[int],
    ) -> PageRead:
        """Start to read the last of their pages into ours."""
        ...
