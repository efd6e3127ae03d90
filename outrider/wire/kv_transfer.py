"""What an engine needs of the parts that move KV between processes."""

import hashlib
from array import array
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from outrider.wire.submission import Submission
from outrider.wire.transfer_order import TransferOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrompt:
    """The KV of a prompt on one side of a transfer."""

    digest: str  # of the prompt and its salt: both sides must mean the same text
    num_tokens: int  # positions whose KV travels
    pages: tuple[int, ...]  # where this side has it; the reader leaves out what it has cached
    has_row_state: bool  # the state of its row travels, too


def digest_of(submission: Submission) -> str:
    """A name for the KV of a prompt: its text, and what cached prefixes are shared by."""
    prompt = submission.prompt
    is_plain = not (submission.embeds or submission.images)
    assert is_plain, "tokens do not name such a prompt"
    found = hashlib.sha256(f"{len(prompt)} tokens, then the salt\n".encode())
    found.update(array("q", prompt).tobytes())
    found.update(submission.prefix_salt)
    return found.hexdigest()


class KVOffers(Protocol):
    """The rooms of a prefill engine."""

    def expect(self, room: str) -> None:
        """The prompt of this room will be computed: readers wait for it."""
        ...

    def offer(self, room: str, prompt: SharedPrompt, row: int) -> None:
        """Let a reader have the pages, and a copy of the row's state, until the room is ended."""
        ...

    def end(self, room: str) -> None:
        """No reader may have the pages of this room any more."""
        ...

    def take_ended(self) -> Sequence[str]:
        """Rooms that were read, or that no reader asked for in time; each once."""
        ...


class KVRoom(Protocol):
    """A room whose KV is wanted. The prefill engine is told so until `leave`, and keeps it."""

    @property
    def offered(self) -> "Future[str]":
        """Done when the prompt is computed; why its KV cannot be had, or empty."""
        ...

    def leave(self) -> None:
        """The KV is not needed any more, or has come."""
        ...


class KVFetch(Protocol):
    """KV on its way into the pages of this engine."""

    @property
    def name(self) -> str:
        """Names this transfer alone. Clients choose rooms, so two transfers can have one room."""
        ...

    @property
    def outcome(self) -> "Future[str]":
        """Why the pages do not hold the KV; empty if they do."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes that were asked for: pages, row state and messages about them."""
        ...

    def is_released(self) -> bool:
        """Whether the transfer writes nothing into the pages any more."""
        ...

    def take_back(self) -> bool:
        """Whether the read has not begun. Then it never will, and there is no outcome."""
        ...

    def cancel(self) -> None:
        """The KV is not needed any more."""
        ...


class KVFetches(Protocol):
    """Brings the KV of prompts that prefill engines have computed."""

    def ask(self, order: TransferOrder) -> KVRoom:
        """Wait for a room. It takes no pages here."""
        ...

    def read(self, order: TransferOrder, prompt: SharedPrompt) -> KVFetch:
        """Start to read a room that is offered into the pages, the last ones of the prompt.

        Steps that were submitted before may still write these pages: the read waits for them.
        """
        ...

    def decline(self, order: TransferOrder, digest: str) -> None:
        """Tell the prefill engine that the KV of this text is not needed."""
        ...

    def forget(self, name: str) -> None:
        """The row state that came with this transfer is not needed any more."""
        ...
