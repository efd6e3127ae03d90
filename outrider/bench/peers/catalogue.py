"""Which peers there are, which of them are installed here, and how each is loaded."""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.bench.peers.protocol import Peer
from outrider.config.engine import Dtype
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPackage:
    """A peer before it is loaded. `name` is what pip installs and what --peers takes."""

    name: str
    module: str
    dtypes: tuple[Dtype, ...]
    load: Callable[[Path, Dtype], Peer]

    @property
    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.name)

    def dtypes_for(self, asked: tuple[Dtype, ...]) -> tuple[Dtype, ...]:
        """Those of the asked types that the peer has too, or its first one."""
        return tuple(dtype for dtype in asked if dtype in self.dtypes) or self.dtypes[:1]


def _load_transformers(folder: Path, dtype: Dtype) -> Peer:
    from outrider.bench.peers.transformers import TransformersPeer

    return TransformersPeer(folder, dtype)


PEERS = {
    peer.name: peer
    for peer in (
        PeerPackage(
            name="transformers",
            module="transformers",
            dtypes=("float32", "bfloat16"),
            load=_load_transformers,
        ),
    )
}


def find_peers(names: tuple[str, ...]) -> tuple[PeerPackage, ...]:
    """The peers of these names, installed or not."""
    for name in names:
        if name not in PEERS:
            raise ConfigError(f"unknown peer {name!r}; use one of {', '.join(PEERS)}, or none")
    return tuple(PEERS[name] for name in names)
