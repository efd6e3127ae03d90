"""One safetensors file, mapped into memory: its tensors are views of the file."""

import json
import math
import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from outrider.config.process_heap import note_mapping

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}
MOST_RESIDENT = 32 << 20  # bytes of files while a model loads; a few tensors, read together
_LENGTH_BYTES = 8  # of the header, little-endian, at the start of the file


class MappedFile:
    """Owns the mapping. A tensor that is a view of it keeps it open.

    Pages of the file are resident once they were read. `release` drops them again; the views stay
    valid, because the next read gets them from the file.
    """

    def __init__(self, path: Path) -> None:
        with safe_open(path, framework="pt"):
            pass  # the library refuses damaged headers, and offsets outside of the file
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header: dict[str, Any] = json.loads(file.read(length))
            self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        note_mapping(self._mapping)
        header.pop("__metadata__", None)
        self._header = header
        self._first = _LENGTH_BYTES + length

    @property
    def names(self) -> Iterable[str]:
        return self._header.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._header[name]["shape"])

    def dtype_name(self, name: str) -> str:
        """The format's name of the type, such as F32."""
        dtype: str = self._header[name]["dtype"]
        return dtype

    def view(self, name: str) -> torch.Tensor:
        """The tensor. It must not be written to."""
        dtype, shape = _DTYPES[self.dtype_name(name)], self.shape(name)
        if not math.prod(shape):
            return torch.empty(shape, dtype=dtype)
        first, last = self._range(name)
        stored = torch.frombuffer(
            self._mapping, dtype=torch.uint8, offset=first, count=last - first
        )
        if first % dtype.itemsize:  # torch has no views of misaligned numbers
            stored = stored.clone()
        return stored.view(dtype).view(shape)

    def release(self) -> None:
        """Drop all resident pages."""
        self._mapping.madvise(mmap.MADV_DONTNEED)

    def _range(self, name: str) -> tuple[int, int]:
        first, last = self._header[name]["data_offsets"]
        return self._first + first, self._first + last
