"""What the pickle in a file of `torch.save` says of its one dense tensor.

No unpickler runs, not even a restricted one: a file commands its memo, its calls and attributes.
The pickle is compared with the one sequence of opcodes that torch writes for a tensor, or for a
parameter. Names, numbers and the key of the storage are all that is read from it.
"""

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass

_MAX_PICKLE_BYTES = 4096  # torch writes about 200

_HOOKS = ("GLOBAL collections OrderedDict", "EMPTY_TUPLE", "REDUCE")
_TENSOR = (
    *("GLOBAL torch._utils _rebuild_tensor_v2", "MARK"),
    # "storage", its type, its key, a device, how many values
    *("MARK", "TEXT", "STORAGE", "TEXT", "TEXT", "INTEGER", "TUPLE", "BINPERSID"),
    "INTEGER",  # the offset
    *("INTEGER", "INTEGER", "TUPLE2"),  # the size
    *("INTEGER", "INTEGER", "TUPLE2"),  # the strides
    "FLAG",  # whether it has a gradient
    *_HOOKS,
    *("TUPLE", "REDUCE"),
)
_PARAMETER = (
    "GLOBAL torch._utils _rebuild_parameter",
    *_TENSOR,
    *("FLAG", "BINGET", "EMPTY_TUPLE", "REDUCE"),  # the hooks again, their class by its number
    *("TUPLE3", "REDUCE"),
)
_FORMS = tuple(("PROTO", *form, "STOP") for form in (_TENSOR, _PARAMETER))


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """Where the values of a tensor lie."""

    storage_type: str  # such as FloatStorage
    key: str  # of the storage: the name of its file
    offset: int  # in values
    size: tuple[int, int]
    stride: tuple[int, int]


def read_saved_tensor(pickled: bytes) -> SavedTensor:
    """The tensor; ValueError for a pickle of anything else."""
    if len(pickled) > _MAX_PICKLE_BYTES:
        raise ValueError("no single tensor")
    words: list[str] = []
    texts: list[str] = []
    integers: list[int] = []
    for word, value in _words(pickled):
        words.append(word)
        if isinstance(value, int):
            integers.append(value)
        elif value is not None:
            texts.append(value)
    if tuple(words) not in _FORMS:
        raise ValueError("not one dense tensor of two dimensions")
    kind, storage_type, key, _ = texts
    _, offset, tokens, hidden, outer, inner = integers
    if kind != "storage" or min(integers) < 0:
        raise ValueError("no storage of a tensor")
    return SavedTensor(
        storage_type=storage_type,
        key=key,
        offset=offset,
        size=(tokens, hidden),
        stride=(outer, inner),
    )


def _words(pickled: bytes) -> Iterator[tuple[str, str | int | None]]:
    """Each opcode as the forms name it, and the value at a place where values differ."""
    for opcode, value, _ in pickletools.genops(pickled):
        match opcode.name:
            case "BINPUT":
                pass  # a number for something; none of it is looked up
            case "GLOBAL" if str(value).startswith("torch "):
                yield "STORAGE", str(value).removeprefix("torch ")
            case "GLOBAL":
                yield f"GLOBAL {value}", None
            case "BINUNICODE":
                yield "TEXT", str(value)
            case "BININT" | "BININT1" | "BININT2":
                assert isinstance(value, int)
                yield "INTEGER", value
            case "NEWTRUE" | "NEWFALSE":
                yield "FLAG", None
            case other:
                yield other, None
