"""The pages of layers that do not see whole texts: how many there are, and how many a row needs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which tokens of its text a query of a layer sees."""

    tokens: int  # the newest ones, itself included
    is_chunk: bool = False  # those of its own attention chunk, of which each has so many

    def first_seen(self, position: int) -> int:
        """The oldest token that a query at this position sees."""
        if self.is_chunk:
            return position // self.tokens * self.tokens
        return max(position - self.tokens + 1, 0)


NO_WINDOW = Window(tokens=0)  # no layer has window pages


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFacts:
    """Pages of the layers with a sliding window or attention chunks, given back behind them."""

    window: Window
    num_pages: int  # usable window pages; window page 0 not counted
    page_bytes: int  # of one window page, over these layers

    @property
    def kv_bytes(self) -> int:
        return self.num_pages * self.page_bytes


NO_WINDOWS = WindowFacts(window=NO_WINDOW, num_pages=0, page_bytes=0)


def most_window_pages(
    window: int,  # tokens of a window, or of an attention chunk
    *,
    page_size: int,
    step_tokens: int,
    reach: int,
    depth: int,
) -> int:
    """Pages from the first that a row's query sees to the last that its step may write.

    A row runs a chunk of up to `step_tokens`, or a round that writes up to `reach` positions. The
    host knows the length of a decode row only up to the rounds in flight.
    """
    tokens = window + step_tokens + (depth + 2) * reach
    return -(-tokens // page_size) + 1
