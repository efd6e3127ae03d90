"""Pages over the side channel itself. It needs no package, and copies by way of the host."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from outrider.disaggregation.offer_board import OfferBoard
from outrider.disaggregation.offer_key import OfferKey
from outrider.disaggregation.page_bytes import PageBytes
from outrider.disaggregation.side_channel import Message, SideChannel
from outrider.wire.kv_transfer import SharedPrompt

_PIECE_BYTES = 2**24  # of host memory for one piece; a lease is renewed with every piece


class TcpSource:
    """Sends pages of one tensor after the other."""

    def __init__(self, pages: PageBytes, board: OfferBoard) -> None:
        self._pages = pages
        self._board = board

    def describe(self) -> dict[str, Any]:
        return {}

    @torch.inference_mode()
    def send(
        self, channel: SideChannel, key: OfferKey, prompt: SharedPrompt, *, first: int
    ) -> None:
        for part, places in _pieces(self._pages, len(prompt.pages) - first):
            wanted = [prompt.pages[first + place] for place in places]
            if self._board.hold(key) is None:
                raise ConnectionError("the lease ended while its pages were read")
            channel.send_tensor(self._pages.read(part, wanted))


class FinishedRead:
    """A read that has ended before it is returned."""

    num_bytes = 0  # all came over the side channel

    def is_done(self) -> bool:
        return True

    def is_over(self) -> bool:
        return True


class TcpSink:
    """Writes pages in the order in which `TcpSource` sends them."""

    def __init__(self, pages: PageBytes) -> None:
        self._pages = pages

    @torch.inference_mode()
    def read(
        self,
        channel: SideChannel,
        welcome: Message,
        key: OfferKey,
        theirs: Sequence[int],
        ours: Sequence[int],
    ) -> FinishedRead:
        del welcome
        first = len(theirs) - len(ours)
        if not channel.ask(key.ask("read", first=first)).get("is_held"):
            raise ConnectionError("the lease ended before its pages were read")
        for part, places in _pieces(self._pages, len(ours)):
            values = torch.empty(len(places), self._pages.parts[part].shape[1], dtype=torch.uint8)
            channel.receive_tensor(values)
            self._pages.write(part, [ours[place] for place in places], values)
        return FinishedRead()


def _pieces(pages: PageBytes, num_pages: int) -> Iterator[tuple[int, range]]:
    """Tensors and ranges of pages, in the order in which both sides move them."""
    for part, tensor in enumerate(pages.parts):
        num_each = max(_PIECE_BYTES // tensor.shape[1], 1)
        for start in range(0, num_pages, num_each):
            yield part, range(start, min(start + num_each, num_pages))
