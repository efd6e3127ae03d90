"""`prompt_embeds` of a body: base64 of a safetensors file, or of a tensor that torch saved.

The server does not run what clients pickle. A saved tensor is read here, by a reader that knows
four names and no code; sparse tensors, which torch reads even with `weights_only`, do not exist.
"""

import base64
import binascii
import io
import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from outrider.errors import RequestError
from outrider.frontend.read_embeds import span_of
from outrider.wire.embedded_span import EmbeddedSpan

MAX_EMBEDS_BYTES = 2**24  # of one tensor; a body is smaller anyway
_MAX_HEADER_BYTES = 2**16
_FIX = "send base64 of torch.save(tensor) or of a safetensors file with one tensor [tokens, hidden]"
_SAFETENSORS = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}
_STORAGES = {
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "DoubleStorage": "F64",
    "BFloat16Storage": "BF16",
}


def decode_embeds(text: str) -> EmbeddedSpan:
    """The embeddings of one prompt."""
    try:
        body = base64.b64decode(text, validate=True)
        if len(body) > MAX_EMBEDS_BYTES:
            raise RequestError(f"prompt_embeds has more than {MAX_EMBEDS_BYTES} bytes; send fewer")
        read = _read_torch if body.startswith(b"PK\x03\x04") else _read_safetensors
        return span_of(read(body))
    except RequestError:
        raise
    except _BROKEN as error:
        raise RequestError(f"prompt_embeds cannot be read ({error}); {_FIX}") from error


# What parsers raise about bytes that are not what they seem.
_BROKEN = (
    binascii.Error,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)


def _read_safetensors(body: bytes) -> np.ndarray:
    """The only tensor of a safetensors file."""
    num_header = int.from_bytes(body[:8], "little")
    if not 2 <= num_header <= min(_MAX_HEADER_BYTES, len(body) - 8):
        raise ValueError("no header of safetensors")
    entries = json.loads(body[8 : 8 + num_header])
    names = [name for name in entries if name != "__metadata__"]
    if len(names) != 1:
        raise ValueError(f"{len(names)} tensors")
    entry = entries[names[0]]
    first, stop = entry["data_offsets"]
    data = body[8 + num_header :]
    if not 0 <= first <= stop <= len(data):
        raise ValueError("offsets outside of the file")
    return _array(data[first:stop], entry["dtype"], entry["shape"])


def _array(data: bytes, dtype: str, shape: Sequence[int]) -> np.ndarray:
    values = np.frombuffer(data, dtype=_SAFETENSORS[dtype]).reshape(shape)
    if dtype != "BF16":
        return values
    return (values.astype("<u4") << 16).view("<f4")  # the upper half of a float32


def _read_torch(body: bytes) -> np.ndarray:
    """A tensor as `torch.save` writes it: a zip file with a pickle and the bytes of storages."""
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        infos = archive.infolist()
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise ValueError("a compressed file")
        pickles = [info for info in infos if info.filename.endswith("/data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > _MAX_HEADER_BYTES:
            raise ValueError("no single tensor")
        folder = pickles[0].filename.removesuffix("data.pkl")
        reader = _TensorReader(
            io.BytesIO(archive.read(pickles[0])), lambda key: archive.read(f"{folder}data/{key}")
        )
        tensor = reader.load()
    if not isinstance(tensor, np.ndarray):
        raise ValueError(f"a {type(tensor).__name__}")
    return tensor


class _TensorReader(pickle.Unpickler):
    """Reads one dense tensor, once. Every other name in the pickle is refused."""

    def __init__(self, file: io.BytesIO, read_storage: Callable[[str], bytes]) -> None:
        super().__init__(file)
        self._read_storage = read_storage
        self._num_tensors = 0

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case "torch._utils", "_rebuild_tensor_v2":
                return self._rebuild_once
            case "torch._utils", "_rebuild_parameter":
                return lambda tensor, *_: tensor
            case "collections", "OrderedDict":
                return OrderedDict
            case "torch", _ if name in _STORAGES:
                return _STORAGES[name]
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a dense tensor")

    def _rebuild_once(self, *arguments: Any) -> np.ndarray:
        """The tensor. A small pickle could name a large one a thousand times."""
        self._num_tensors += 1
        if self._num_tensors > 1:
            raise pickle.UnpicklingError("more than one tensor")
        return _rebuild_tensor(*arguments)

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, key, _, _ = pid
        if kind != "storage" or not isinstance(key, str):
            raise pickle.UnpicklingError("no storage")
        return self._read_storage(key), dtype


def _rebuild_tensor(
    storage: tuple[bytes, str], offset: int, size: Sequence[int], stride: Sequence[int], *_: object
) -> np.ndarray:
    data, dtype = storage
    tokens, hidden = size
    if tuple(stride) != (hidden, 1) or offset < 0:
        raise ValueError("not contiguous: save tensor.contiguous()")
    item = np.dtype(_SAFETENSORS[dtype]).itemsize
    part = data[offset * item : (offset + tokens * hidden) * item]
    return _array(part, dtype, (tokens, hidden))
