"""Fixed device buffers; plans are views of them. A name always means the same memory."""

import torch

from outrider.step.zeroed_memory import zeroed


class Arena:
    """Owns one flat buffer per name."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[str, torch.Tensor] = {}
        self._prefix = ""  # of all names

    def part(self, name: str) -> "Arena":
        """The same arena for another user of the same names: its own begin with `name`."""
        part = Arena(self.device)
        part._buffers = self._buffers
        part._prefix = f"{self._prefix}{name}."
        return part

    def reserve(self, name: str, numel: int, dtype: torch.dtype) -> None:
        """Reserve memory for the largest view that will ever be bound under this name."""
        name = self._prefix + name
        assert name not in self._buffers, f"{name} is reserved once, before the first plan"
        self._buffers[name] = zeroed(numel, dtype=dtype, device=self.device)

    def view(self, name: str, *shape: int) -> torch.Tensor:
        """The leading elements of the buffer, as `shape`. Equal arguments give equal addresses."""
        numel = 1
        for size in shape:
            numel *= size
        buffer = self._buffers[self._prefix + name]
        assert numel <= buffer.numel(), f"{name}: {shape} exceeds what was reserved"
        return buffer[:numel].view(shape)

    def poison(self) -> None:
        """Overwrite everything with values that no correct step produces (for tests)."""
        for buffer in self._buffers.values():
            buffer.fill_(float("nan") if buffer.is_floating_point() else -(2**30))

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())
