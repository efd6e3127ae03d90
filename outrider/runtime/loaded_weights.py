"""The device memory that loading models has left, to be moved to the host and back.

Models keep weights in many kinds of layers, and drafters share tensors with targets. So weights are
not collected from the layers: the memory of every tensor made while the models are loaded is noted,
and what is alive afterwards are the weights. Moving works on storages, so views stay views.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _StorageNotes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the storage of every tensor that operations of this thread return."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.noted: dict[int, StorageWeakRef] = {}  # by the address of the storage object

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == self._device.type:
                self._note(leaf)
        return result

    def _note(self, tensor: torch.Tensor) -> None:
        if tensor.layout is torch.strided:  # oneDNN's packed weights have no storage
            noted = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self.noted[noted.cdata] = noted


class LoadedWeights:
    """Owns what is known of the weights' memory, and their copy on the host while they are there.

    Addresses change when weights come back: graphs that were captured before are invalid.
    """

    def __init__(self) -> None:
        self._noted: dict[int, StorageWeakRef] = {}
        self._on_host: list[tuple[torch.UntypedStorage, torch.Tensor]] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights that are on the device."""
        return sum(storage.nbytes() for storage in self._storages())

    @contextmanager
    def noting(self, device: torch.device) -> Iterator[None]:
        """The models that the body loads are the weights from now on."""
        self._noted = {}
        with self.noting_more(device):
            yield

    @contextmanager
    def noting_more(self, device: torch.device) -> Iterator[None]:
        """What the body loads belongs to the weights from now on, too."""
        with _StorageNotes(device) as notes:
            yield
        noted = self._noted | notes.noted
        self._noted = {key: each for key, each in noted.items() if not each.expired()}

    def offload(self) -> None:
        """Move the weights to the host. If its memory does not suffice, nothing has changed."""
        copies = [(storage, _host_copy(storage)) for storage in self._storages()]
        for storage, _ in copies:
            storage.resize_(0)
        self._on_host += copies

    def restore(self) -> None:
        """Move the weights back, each into new memory of the size it had."""
        while self._on_host:
            storage, copy = self._on_host[-1]
            storage.resize_(copy.numel())
            _bytes_of(storage).copy_(copy)
            self._on_host.pop()  # only now: a device without room leaves the others to be moved

    def _storages(self) -> Iterator[torch.UntypedStorage]:
        for noted in self._noted.values():
            storage = torch.UntypedStorage._new_with_weak_ptr(noted.cdata)
            if storage is not None and storage.nbytes():
                yield storage


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:  # [bytes] uint8
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _host_copy(storage: torch.UntypedStorage) -> torch.Tensor:  # [bytes] uint8
    """Not pinned: torch rounds pinned memory up to a power of two, and never returns it."""
    return _bytes_of(storage).to("cpu", copy=True)
