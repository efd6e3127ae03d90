"""The LoRA adapter of a request. Submissions name it, and batches bring it to the device."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from outrider.errors import RequestError

TARGET_PART, DRAFT_PART = "", "draft"  # folders below that of the adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A PEFT folder, perhaps with one for the draft head in it. Equal records: equal weights."""

    path: str = ""
    version: str = ""  # of its files: another one when they are replaced
    name: str = field(default="", compare=False)  # what a server calls it; events tell it

    @property
    def is_wanted(self) -> bool:
        return bool(self.path)


NO_ADAPTER = Adapter()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftFiles:
    """The two files of a PEFT folder."""

    config: bytes = field(repr=False)
    weights: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFiles:
    """The files of an adapter as they were checked. What is on disk may change afterwards."""

    adapter: Adapter
    parts: Mapping[str, PeftFiles]  # what the folder has of TARGET_PART and DRAFT_PART


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterLoad:
    """An adapter gets a slot of the device's adapter weights. Slot 0 stands for no adapter.

    It carries the files: a rank that read them itself could find others than rank 0.
    """

    slot: int
    files: AdapterFiles


class AdapterChecks(Protocol):
    """Knows which adapters the target can run through."""

    def check(self, adapter: Adapter) -> None:
        """Refuse an adapter that is damaged or made for another model. No adapter is fine."""
        ...

    def read(self, adapter: Adapter) -> AdapterFiles:
        """The files of an adapter, or a refusal if they are gone, replaced or damaged."""
        ...


class NoAdapterChecks:
    """For an engine without adapters."""

    def check(self, adapter: Adapter) -> None:
        if adapter.is_wanted:
            raise RequestError(
                f"adapters are off, so {adapter.path} cannot be used; start with --enable-lora "
                "(enable_lora=True)"
            )

    def read(self, adapter: Adapter) -> AdapterFiles:
        raise AssertionError(f"{adapter} was refused")


NO_ADAPTER_CHECKS = NoAdapterChecks()


_MARK = b"\xff"


def prefix_salt(adapter: Adapter, cache_salt: str) -> bytes:
    """What cached prefixes are shared by, besides tokens: KV of one adapter fits no other.

    No text has the byte 255, so no salt of a client can imitate an adapter.
    """
    salt = cache_salt.encode()
    if not adapter.is_wanted:
        return salt
    name, version = adapter.name.encode(errors="replace"), adapter.version.encode()
    return _MARK.join((b"", name, version, os.fsencode(adapter.path), b"", salt))


def adapter_name(salt: bytes) -> str:
    """The name of the adapter that a prefix salt has; empty if it has none."""
    return salt.split(_MARK, 2)[1].decode() if salt.startswith(_MARK) else ""
