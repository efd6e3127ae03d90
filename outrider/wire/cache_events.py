"""What happened to cached prefixes, for routers that send a request where its prefix is cached.

A block is a page of the prefix cache; routers and vLLM call it so. Its hash names the text up to
its end, and is the same in every engine with the same page size and drafter.
"""

from dataclasses import dataclass

NO_PARENT = 0  # hash of the empty text


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """Neighbouring blocks that requests can find from now on."""

    hashes: tuple[int, ...]
    parent: int  # hash of the block before the first one, or NO_PARENT
    tokens: tuple[int, ...]  # of all these blocks
    salt: str  # of the request, if the first block begins the text; only equal salts share it


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that requests do not find any more."""

    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """No block is cached any more."""


CacheEvent = BlocksStored | BlocksRemoved | CacheCleared
