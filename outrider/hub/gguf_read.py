"""Reads a GGUF file: typed metadata and raw tensors. Refuses damaged files."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from outrider.errors import ConfigError
from outrider.hub.block_file import BLOCK_KINDS

RawArray = npt.NDArray[Any]  # as stored: floats, or the bytes of quantised blocks
_PART = re.compile(r"(?P<name>.+)-\d{5}-of-(?P<num>\d{5})\.gguf")
_FLOATS = ("F32", "F16", "BF16")
_WIDENED = (
    *("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS"),
    *("IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"),
)
SUPPORTED_KINDS = (*_FLOATS, *BLOCK_KINDS, *_WIDENED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor as the file holds it. Rows come first, as in torch."""

    name: str
    kind: str  # one of SUPPORTED_KINDS
    shape: tuple[int, ...]  # in elements
    raw: RawArray  # [rows, row bytes] for blocks, else shaped like `shape`


class Metadata:
    """The key-value part of a file, read with the type the caller needs."""

    def __init__(self, values: dict[str, object], file_name: str) -> None:
        self._values = values
        self._file_name = file_name

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def keys_under(self, prefix: str) -> set[str]:
        return {key.removeprefix(prefix) for key in self._values if key.startswith(prefix)}

    def integer(self, key: str) -> int:
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._mistyped(key, "an integer")
        return value

    def size(self, key: str) -> int:
        value = self.integer(key)
        if value <= 0:
            raise self._mistyped(key, "positive")
        return value

    def size_or(self, key: str, default: int) -> int:
        return self.size(key) if key in self else default

    def real(self, key: str) -> float:
        """A number, as the shortest decimal of its float32: 1e-05, not 9.999999747e-06."""
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._mistyped(key, "a number")
        return float(str(np.float32(value)))

    def real_or(self, key: str, default: float) -> float:
        return self.real(key) if key in self else default

    def text(self, key: str) -> str:
        value = self._required(key)
        if not isinstance(value, str):
            raise self._mistyped(key, "a string")
        return value

    def flag(self, key: str) -> bool:
        value = self._required(key)
        if not isinstance(value, bool):
            raise self._mistyped(key, "a boolean")
        return value

    def sequence(self, key: str) -> list[Any]:
        value = self._required(key)
        if not isinstance(value, list):
            raise self._mistyped(key, "an array")
        return value

    def _required(self, key: str) -> object:
        if key not in self._values:
            raise ConfigError(
                f"{self._file_name} lacks the metadata {key}; use a complete GGUF of the model"
            )
        return self._values[key]

    def _mistyped(self, key: str, expected: str) -> ConfigError:
        return ConfigError(
            f"{self._file_name}: {key} is not {expected}; use another GGUF of the model"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """The content of a file. Tensors are views of the memory-mapped file."""

    name: str
    metadata: Metadata
    tensors: dict[str, StoredTensor]


class _BoundedReader(gguf.GGUFReader):  # type: ignore[misc]  # gguf is untyped
    """The gguf reader with a bounds check. Without it, bytes past the end read as empty arrays."""

    def _get(self, offset: int, dtype: Any, count: int = 1, *rest: Any, **named: Any) -> RawArray:
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise EOFError
        array: RawArray = super()._get(offset, dtype, count, *rest, **named)
        return array


def read_gguf(path: Path) -> GgufFile:
    """The metadata and the tensors of a file, and of the files that belong to it.

    The bytes of tensors are read on use.
    """
    paths = gguf_parts(path)
    absent = [each for each in paths if not each.is_file()]
    if absent and len(paths) > 1:
        raise ConfigError(
            f"{path} is one of {len(paths)} files, and {absent[0].name} is not beside it; download "
            "all of them into one folder"
        )
    first, *others = [_read_part(each) for each in paths]
    tensors = dict(first.tensors)
    for part in others:
        if twice := tensors.keys() & part.tensors.keys():
            raise ConfigError(
                f"{part.name} has {min(twice)!r}, as another file before it; download the files "
                "again"
            )
        tensors |= part.tensors
    return replace(first, tensors=tensors)


def gguf_parts(path: Path) -> list[Path]:
    """All files of a model of which `path` is one: NAME-00001-of-00003.gguf, ..."""
    found = _PART.fullmatch(path.name)
    if not found or int(found["num"]) < 2:
        return [path]
    name, num = found["name"], found["num"]
    places = range(1, int(num) + 1)
    return [path.with_name(f"{name}-{place:05}-of-{num}.gguf") for place in places]


def _read_part(path: Path) -> GgufFile:
    try:
        reader = _BoundedReader(path)
        values = {key: field.contents() for key, field in reader.fields.items()}
    except EOFError as error:
        raise ConfigError(
            f"{path} is truncated; download it again and compare its size with the source"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path") from error
    # The reader raises these on invalid bytes. It has no documented errors.
    except (ValueError, KeyError, IndexError, OverflowError, TypeError) as error:
        raise ConfigError(f"{path} is not a readable GGUF file; get it again") from error
    if reader.byte_order != "I":
        raise ConfigError(f"{path} is big-endian; use the little-endian file of the model")
    tensors = {tensor.name: _stored(tensor, path.name) for tensor in reader.tensors}
    return GgufFile(name=path.name, metadata=Metadata(values, path.name), tensors=tensors)


def _stored(tensor: Any, file_name: str) -> StoredTensor:
    kind = tensor.tensor_type.name
    if kind not in SUPPORTED_KINDS:
        raise ConfigError(
            f"{file_name}: tensor {tensor.name!r} has the unsupported quantisation {kind}; "
            f"use a file with {', '.join(SUPPORTED_KINDS)} (such as Q8_0 or Q4_K_M)"
        )
    shape = tuple(int(size) for size in reversed(tensor.shape))
    if not shape or 0 in shape:
        raise ConfigError(f"{file_name}: tensor {tensor.name!r} is empty; get the file again")
    return StoredTensor(name=tensor.name, kind=kind, shape=shape, raw=tensor.data)


def dequantized(raw: RawArray, kind: str) -> RawArray:
    """Rows of a tensor as they are written: quantised ones as float32, BF16 as bits."""
    if kind in ("F32", "F16"):
        return raw
    if kind == "BF16":
        return raw.view(np.uint16)
    try:
        values: RawArray = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    except NotImplementedError as error:
        raise ConfigError(
            f"the installed package gguf does not read {kind}; run: pip install -U gguf"
        ) from error
    return values
