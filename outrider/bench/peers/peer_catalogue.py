"""Which peers there are, which of them are installed here, and how each is loaded."""

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass

from outrider.bench.peers.peer_protocol import Peer, PeerModel
from outrider.config.engine_config import Dtype
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPackage:
    """A peer before it is loaded. Its name is what --peers takes and what pip installs."""

    name: str
    needs: tuple[str, ...]  # further packages
    dtypes: tuple[Dtype, ...]
    load: Callable[[PeerModel, Dtype], Peer]
    reads_gguf: bool = False  # and nothing else

    @property
    def is_installed(self) -> bool:
        return all(_has_package(package) for package in (self.name, *self.needs))

    def why_not(self, model: PeerModel) -> str:
        """Why it is not measured here with this model; empty if it is."""
        if not self.is_installed:
            return "not installed"
        if self.reads_gguf and model.gguf is None:
            return "reads GGUF files; name one with --model"
        return ""

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.name)

    def dtypes_for(self, wanted: tuple[Dtype, ...]) -> tuple[Dtype, ...]:
        """The wanted types that the peer supports, or else its first one."""
        return tuple(dtype for dtype in wanted if dtype in self.dtypes) or self.dtypes[:1]


def _has_package(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _load_transformers(model: PeerModel, dtype: Dtype) -> Peer:
    from outrider.bench.peers.transformers_peer import TransformersPeer

    return TransformersPeer(model.folder, dtype)


def _load_openvino(model: PeerModel, dtype: Dtype) -> Peer:
    from outrider.bench.peers.openvino_peer import OpenVinoPeer

    return OpenVinoPeer(model.folder, dtype)


def _load_llama_cpp(model: PeerModel, dtype: Dtype) -> Peer:
    from outrider.bench.peers.llama_cpp_peer import LlamaCppPeer

    assert model.gguf is not None, "why_not() has said so"
    return LlamaCppPeer(model.gguf, dtype)


PEERS = {
    peer.name: peer
    for peer in (
        PeerPackage(
            name="transformers",
            needs=(),
            dtypes=("float32", "bfloat16"),
            load=_load_transformers,
        ),
        PeerPackage(
            name="openvino-genai",
            needs=("optimum-intel",),  # exports the model
            dtypes=("float32", "int8"),
            load=_load_openvino,
        ),
        PeerPackage(
            name="llama-cpp-python",
            needs=(),
            dtypes=("packed", "int8", "float16", "float32"),
            load=_load_llama_cpp,
            reads_gguf=True,
        ),
    )
}
_WORDS = {"all": tuple(PEERS.values()), "none": ()}


def parse_peers(value: str) -> tuple[PeerPackage, ...]:
    """The peers of a comma list, of `all` or of `none`, installed or not."""
    if value in _WORDS:
        return _WORDS[value]
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in PEERS:
            raise ConfigError(f"--peers has {name!r}; use {', '.join(PEERS)}, all or none")
    return tuple(PEERS[name] for name in dict.fromkeys(names))
