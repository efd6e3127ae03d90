"""Pages by NIXL: the decode side reads the memory of the prefill side, by RDMA where it exists."""

import base64
import importlib
import logging
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from outrider.config.role_checks import nixl_package
from outrider.disaggregation.offer_key import OfferKey
from outrider.disaggregation.page_bytes import PageBytes
from outrider.disaggregation.side_channel import Message, SideChannel
from outrider.wire.kv_transfer import SharedPrompt

Region = tuple[int, int, int]  # address, bytes, device
_MAX_IDLE_PEERS = 64  # agents that nothing is read from; each restart of a server makes another
_LOOK_US = 20_000  # between two looks at UCX without an event: some events wake no thread

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class NixlPeer:
    """An agent of a prefill engine, as NIXL knows it here."""

    metadata: bytes
    name: str
    num_reads: int = 0  # in flight
    is_lost: bool = False  # a read of it has failed


class NixlMemory:
    """Owns an agent that has registered all pages. Its methods may be called by any thread."""

    def __init__(self, pages: PageBytes) -> None:
        self._parts = pages.parts  # registered memory must stay
        self._lock = threading.Lock()  # the agent is not safe for threads
        _allow_reads_between_gpus()
        self._agent = _open_agent(f"outrider-{uuid.uuid4()}")
        self.kind = "VRAM" if any(part.get_device() >= 0 for part in self._parts) else "DRAM"
        self._peers: dict[bytes, NixlPeer] = {}  # by metadata; the one that was used last is last
        self._agent.register_memory([_whole(part) for part in self._parts], self.kind)

    def describe(self) -> dict[str, Any]:
        metadata = base64.b64encode(self._agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "kind": self.kind, "regions": self.regions}

    @property
    def regions(self) -> list[Region]:
        """Address of page 0, bytes of a page, and device, for each tensor."""
        return [(part.data_ptr(), part.shape[1], max(part.get_device(), 0)) for part in self._parts]

    def begin_read(
        self, welcome: Message, theirs: Sequence[int], ours: Sequence[int]
    ) -> "NixlRead":
        """Start to read pages of a peer, which described itself, into pages of the same order."""
        regions = [_region(each) for each in welcome["regions"]]
        if [each[1] for each in regions] != [each[1] for each in self.regions]:
            raise ConnectionError("the prefill engine has pages of another length")
        local, remote = [], []
        for own, other in zip(self.regions, regions, strict=True):
            for mine, yours, count in _runs(ours, theirs):
                local.append(_range(own, mine, count))
                remote.append(_range(other, yours, count))
        metadata = base64.b64decode(welcome["metadata"])
        with self._lock:
            peer = self._use_peer(metadata)
            handle = self._agent.initialize_xfer(
                "READ",
                self._agent.get_xfer_descs(local, self.kind),
                self._agent.get_xfer_descs(remote, str(welcome["kind"])),
                peer.name,
            )
            self._agent.transfer(handle)
            peer.num_reads += 1
        return NixlRead(self, peer, handle, num_bytes=sum(each[1] for each in local))

    def _use_peer(self, metadata: bytes) -> NixlPeer:
        """The agent that described itself so. Of others that are idle, the oldest are forgotten."""
        peer = self._peers.pop(metadata, None)
        if peer is None:
            peer = NixlPeer(metadata, self._agent.add_remote_agent(metadata))
        idle = [each for each in self._peers.values() if not each.num_reads]
        for each in idle[: max(len(idle) - _MAX_IDLE_PEERS, 0)]:
            self._forget(each)
        self._peers[metadata] = peer
        return peer

    def _forget(self, peer: NixlPeer) -> None:
        del self._peers[peer.metadata]
        try:
            self._agent.remove_remote_agent(peer.name)
        except Exception as error:  # as in `look`; it may have left by itself
            _log.debug("NIXL did not forget %s: %s", peer.name, error)

    def look(self, peer: NixlPeer, handle: Any) -> str:
        """The state of a read: PROC, DONE, or what ended it."""
        with self._lock:
            try:
                state = str(self._agent.check_xfer_state(handle))
            except Exception as error:  # NIXL has a class of its own for every status
                state = f"{type(error).__name__} {error}"
            if state != "PROC":
                self._agent.release_xfer_handle(handle)
                peer.num_reads -= 1
                peer.is_lost |= state != "DONE"
                if peer.is_lost and not peer.num_reads and peer.metadata in self._peers:
                    self._forget(peer)
        return state


class NixlRead:
    """A read in flight. A stopped peer may finish it much later, so its pages wait until then."""

    def __init__(self, memory: NixlMemory, peer: NixlPeer, handle: Any, *, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._memory = memory
        self._peer = peer
        self._handle = handle
        self._state = "PROC"  # also if it has ended already: `look` gives the handle back

    def is_done(self) -> bool:
        if self.is_over() and self._state != "DONE":
            raise ConnectionError(f"the read failed: {self._state}")
        return self._state == "DONE"

    def is_over(self) -> bool:
        if self._state == "PROC":
            self._state = self._memory.look(self._peer, self._handle)
        return self._state != "PROC"


class NixlSource:
    """The prefill side: readers get descriptions, and read by themselves."""

    def __init__(self, pages: PageBytes) -> None:
        self._memory = NixlMemory(pages)

    def describe(self) -> dict[str, Any]:
        return self._memory.describe()

    def send(
        self, channel: SideChannel, key: OfferKey, prompt: SharedPrompt, *, first: int
    ) -> None:
        del channel, prompt, first
        raise ConnectionError(
            f"a reader wants room {key.room} by the side channel, and not by nixl"
        )


class NixlSink:
    """The decode side."""

    def __init__(self, pages: PageBytes) -> None:
        self._memory = NixlMemory(pages)

    def read(
        self,
        channel: SideChannel,
        welcome: Message,
        key: OfferKey,
        theirs: Sequence[int],
        ours: Sequence[int],
    ) -> NixlRead:
        del channel, key
        return self._memory.begin_read(welcome, theirs[len(theirs) - len(ours) :], ours)


def _open_agent(name: str) -> Any:
    """An agent whose thread sleeps until UCX has an event.

    NIXL's Python class has no argument for the delay of that thread and sets 0: the thread then
    never sleeps, and an idle engine needs a whole core. So the class gets an agent of ours.
    """
    api = importlib.import_module(f"{nixl_package()}._api")
    bindings = importlib.import_module(f"{nixl_package()}._bindings")
    agent = api.nixl_agent(name, api.nixl_agent_config(backends=[]))
    config = bindings.nixlAgentConfig()
    config.useProgThread = True
    config.syncMode = bindings.NIXL_THREAD_SYNC_NONE
    config.pthrDelay = _LOOK_US
    agent.agent = bindings.nixlAgent(name, config)
    agent.create_backend("UCX")
    return agent


def _allow_reads_between_gpus() -> None:
    """Where UCX finds no NVLink it reads GPU memory of the same machine over TCP, at 0.4 GB/s.

    CUDA can map that memory with or without NVLink. A user's own choice stays.
    """
    os.environ.setdefault("UCX_CUDA_IPC_ENABLE_GET_ZCOPY", "on")


def _whole(part: torch.Tensor) -> tuple[int, int, int, str]:
    return part.data_ptr(), part.numel(), max(part.get_device(), 0), ""


def _region(given: Sequence[Any]) -> Region:
    address, num_bytes, device = given
    return int(address), int(num_bytes), int(device)


def _range(region: Region, page: int, count: int) -> Region:
    address, num_bytes, device = region
    return address + int(page) * num_bytes, count * num_bytes, device


def _runs(ours: Sequence[int], theirs: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring pages on both sides as one: the first of each side, and how many."""
    start = 0
    for place in range(1, len(ours) + 1):
        is_next = place < len(ours) and (
            ours[place] == ours[place - 1] + 1 and theirs[place] == theirs[place - 1] + 1
        )
        if not is_next:
            yield ours[start], theirs[start], place - start
            start = place
