"""The pages of layers with a sliding window: how many there are, and how many a row can need."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFacts:
    """Pages of the layers with a sliding window, which they give back behind it."""

    tokens: int  # that a query of such a layer sees, itself included; 0: no layer has such pages
    num_pages: int  # usable window pages; window page 0 not counted
    page_bytes: int  # of one window page, over these layers

    @property
    def kv_bytes(self) -> int:
        return self.num_pages * self.page_bytes


NO_WINDOWS = WindowFacts(tokens=0, num_pages=0, page_bytes=0)


def most_window_pages(
    window: int, *, page_size: int, step_tokens: int, reach: int, depth: int
) -> int:
    """Pages from the first that a row's query sees to the last that its step may write.

    A row runs a chunk of up to `step_tokens`, or a round that writes up to `reach` positions. The
    host knows the length of a decode row only up to the rounds in flight.
    """
    tokens = window + step_tokens + (depth + 2) * reach
    return -(-tokens // page_size) + 1
