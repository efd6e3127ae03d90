"""`prompt_embeds` of a body: base64 of a safetensors file, or of a tensor that torch saved.

The server does not run what clients pickle: see `saved_tensor`. Sparse tensors, which torch reads
even with `weights_only`, do not exist here.
"""

import base64
import binascii
import io
import json
import struct
import zipfile
from collections.abc import Sequence

import numpy as np

from outrider.errors import RequestError
from outrider.frontend.read_embeds import span_of
from outrider.server.protocol.saved_tensor import SavedTensor, read_saved_tensor
from outrider.wire.embedded_span import EmbeddedSpan

MAX_EMBEDS_BYTES = 2**24  # of one tensor; a body is smaller anyway
_MAX_HEADER_BYTES = 2**16
_MAX_FILES = 64  # in a zip file; torch writes 7
_ZIP_ENTRY = b"PK\x01\x02"
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
    MemoryError,
    NotImplementedError,
    OSError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
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
    """A tensor as `torch.save` writes it: a zip file with a pickle and the bytes of a storage."""
    if body.count(_ZIP_ENTRY) > _MAX_FILES:  # each entry begins so; the reader keeps all of them
        raise ValueError("many files")
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        infos = archive.infolist()
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
            raise ValueError("a compressed file")
        pickles = [info for info in infos if info.filename.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError("no single tensor")
        tensor = read_saved_tensor(archive.read(pickles[0]))
        folder = pickles[0].filename.removesuffix("data.pkl")
        return _stored(tensor, archive.read(f"{folder}data/{tensor.key}"))


def _stored(tensor: SavedTensor, data: bytes) -> np.ndarray:
    """The values of a tensor in the bytes of its storage."""
    dtype, (tokens, hidden) = _STORAGES[tensor.storage_type], tensor.size
    if tensor.stride != (hidden, 1):
        raise ValueError("not contiguous: save tensor.contiguous()")
    item = np.dtype(_SAFETENSORS[dtype]).itemsize
    part = data[tensor.offset * item : (tensor.offset + tokens * hidden) * item]
    return _array(part, dtype, tensor.size)
