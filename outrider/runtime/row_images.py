"""Row state as bytes: what a request that continues in another engine takes along besides pages."""

from collections.abc import Iterable

import torch

from outrider.step.device_stream import DeviceStream


class RowImages:
    """Reads the state of a row, and keeps the images of rows that have come until they are placed.

    Images are uint8 tensors on the host. Any thread may keep one; the rest is for the engine's.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], stream: DeviceStream) -> None:
        self._tensors = tuple(each for each in tensors if each.numel())  # [table_rows, ...] each
        self._stream = stream
        self._kept: dict[str, torch.Tensor] = {}  # by the name of the transfer

    @property
    def layout(self) -> list[str]:
        """The type and the shape of each part."""
        return [f"{each.dtype}{list(each.shape[1:])}" for each in self._tensors]

    @property
    def row_bytes(self) -> int:
        return count_row_bytes(self._tensors)

    @torch.inference_mode()
    def read(self, row: int) -> torch.Tensor:  # [row_bytes]
        """The state of a row after all steps that were submitted."""
        with self._stream.active():
            parts = [each[row].reshape(-1).view(torch.uint8) for each in self._tensors]
            return torch.cat(parts).cpu()

    def keep(self, name: str, image: torch.Tensor) -> None:
        self._kept[name] = image

    def forget(self, name: str) -> None:
        self._kept.pop(name, None)

    def forget_all(self) -> None:
        self._kept.clear()

    def place(self, row: int, name: str) -> None:
        """Write an image into a row, before a step that runs it. Called in the runner's stream."""
        image, start = self._kept.pop(name), 0
        for each in self._tensors:
            size = each[row].numel() * each.element_size()
            values = image[start : start + size].view(each.dtype).view(each[row].shape)
            each[row].copy_(values)
            start += size


def count_row_bytes(tensors: Iterable[torch.Tensor]) -> int:  # [table_rows, ...] each
    """Bytes of one row; 0 for a model without row state."""
    return sum(each[0].numel() * each.element_size() for each in tensors)
