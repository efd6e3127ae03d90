"""Which peers run a load of requests that come and go, and which are importable here. No torch."""

import importlib.metadata
import importlib.util
from dataclasses import dataclass

from outrider.bench.offline.offline_args import split_list
from outrider.bench.peers.peer_speculation import PEER_HEADS
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnPackage:
    """A peer before it is loaded. Its name is what --peers takes and what Python imports."""

    name: str

    def can_draft(self, kind: str) -> bool:
        """Whether it loads heads of this kind."""
        return kind in PEER_HEADS[self.name]

    @property
    def is_installed(self) -> bool:
        spec = importlib.util.find_spec(self.name)
        return spec is not None and spec.origin is not None  # else a folder of that name

    @property
    def version(self) -> str:
        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:  # unpacked without its metadata
            return "unknown"


CHURN_PEERS = {name: ChurnPackage(name=name) for name in PEER_HEADS}
# transformers answers one batch after another, so it runs only when it is named.
_WORDS = {"all": (CHURN_PEERS["vllm"], CHURN_PEERS["sglang"]), "none": ()}


def parse_churn_peers(value: str) -> tuple[ChurnPackage, ...]:
    """The peers of a comma list, of `all` or of `none`; those of `all` only where installed."""
    if value in _WORDS:
        return tuple(peer for peer in _WORDS[value] if peer.is_installed)
    names = split_list(value)
    for name in names:
        if name not in CHURN_PEERS:
            known = ", ".join(CHURN_PEERS)
            raise ConfigError(f"--peers with --churn has {name!r}; use {known}, all or none")
        if not CHURN_PEERS[name].is_installed:
            raise ConfigError(f"--peers has {name}, which is not installed here; pip install it")
    return tuple(CHURN_PEERS[name] for name in dict.fromkeys(names))
