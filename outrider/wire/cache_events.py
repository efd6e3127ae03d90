"""What happened to cached prefixes, for routers that send a request where its prefix is cached.

A block is a page of the prefix cache; routers and vLLM call it so. Its hash names the text up to
its end, and is the same in every engine with the same page size and drafter. Blocks of an adapter
are the exception: their hashes name its files on one machine.
"""

from dataclasses import dataclass

NO_PARENT = 0  # hash of the empty text


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """Neighbouring blocks that requests can find from now on."""

    hashes: tuple[int, ...]
    parent: int  # hash of the block before the first one, or NO_PARENT
    tokens: tuple[int, ...]  # of all these blocks
    adapter: str  # the name of the adapter that computed them; empty for the model itself
    salt: str  # a hash of what requests must have in common to share the first block of a text


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that requests do not find any more."""

    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """No block is cached any more."""


CacheEvent = BlocksStored | BlocksRemoved | CacheCleared
