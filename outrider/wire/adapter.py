"""The LoRA adapter of a request. Submissions name it, and batches bring it to the device."""

import os
from dataclasses import dataclass
from typing import Protocol

from outrider.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A PEFT folder. Equal records stand for equal weights."""

    path: str = ""
    version: str = ""  # of its files: another one when they are replaced

    @property
    def is_wanted(self) -> bool:
        return bool(self.path)


NO_ADAPTER = Adapter()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLoad:
    """An adapter gets a slot of the device's adapter weights. Slot 0 stands for no adapter."""

    slot: int
    adapter: Adapter


class AdapterChecks(Protocol):
    """Knows which adapters the target can run through."""

    def check(self, adapter: Adapter) -> None:
        """Refuse an adapter that is damaged or made for another model. No adapter is fine."""
        ...


class NoAdapterChecks:
    """For an engine without adapters."""

    def check(self, adapter: Adapter) -> None:
        if adapter.is_wanted:
            raise RequestError(
                f"adapters are off, so {adapter.path} cannot be used; start with --enable-lora "
                "(enable_lora=True)"
            )


NO_ADAPTER_CHECKS = NoAdapterChecks()


def prefix_salt(adapter: Adapter, cache_salt: str) -> bytes:
    """What cached prefixes are shared by, besides tokens: KV of one adapter fits no other.

    No text has the byte 255, so no salt of a client can imitate an adapter.
    """
    salt = cache_salt.encode()
    if not adapter.is_wanted:
        return salt
    return b"\xff".join((b"", adapter.version.encode(), os.fsencode(adapter.path), b"", salt))
