"""The GGUF blocks of a converted folder, which lie beside the numbers that they stand for."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from safetensors import SafetensorError

from outrider.errors import ConfigError
from outrider.hub.block_file import BLOCKS_FILE, block_name, split_name
from outrider.models.finite_weights import warn_of_non_finite
from outrider.models.mapped_file import MOST_RESIDENT, MappedFile
from outrider.models.quantised.gguf_form import KIND_NAMES
from outrider.models.tensor_cut import Cut
from outrider.ops.compiled.block_kind import KINDS, KindName
from outrider.ops.compiled.gguf_rows import GgufRows
from outrider.ops.linear.block_weight import BlockWeight


class StoredBlocks:
    """Owns the open file."""

    def __init__(self, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._folder = folder
        self._file = open_blocks(folder)
        self._kinds: dict[str, KindName] = {}  # by the name of the weight
        self._non_finite: list[str] = []
        self._resident_bytes = 0  # of what was read since the last release
        for stored in self._file.names:
            weight, kind = split_name(stored)
            if kind in KIND_NAMES:
                self._kinds[weight] = KIND_NAMES[kind]
        for name in self._kinds:
            if self._rows(name).shape != shapes.get(name):
                raise _damaged(folder, f"the blocks of {name} do not fit config.json")

    def find(self, name: str, cut: Cut) -> BlockWeight | None:
        """The blocks of a weight, or of some of its outputs; None if they are not stored."""
        if name not in self._kinds or (cut.ranges and cut.dim):
            return None
        if self._resident_bytes > MOST_RESIDENT:
            self._release()
        whole = self._rows(name)
        self._resident_bytes += whole.rows.nbytes
        weight = BlockWeight((GgufRows(whole.name, cut.of(whole.rows)),))
        if not weight.is_finite():
            self._non_finite.append(name)
        return weight

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Drop what was read of the file, and warn of weights that are not finite."""
        self._release()
        warn_of_non_finite(self._folder, self._non_finite)

    def _release(self) -> None:
        """Drop the pages of what was read so far. Callers have packed most of it by now."""
        self._file.release()
        self._resident_bytes = 0

    def _rows(self, name: str) -> GgufRows:
        kind = self._kinds[name]
        place = block_name(name, kind)
        shape, is_bytes = self._file.shape(place), self._file.dtype_name(place) == "U8"
        if not is_bytes or len(shape) != 2 or shape[1] % KINDS[kind].stored_bytes:
            raise _damaged(self._folder, f"the blocks of {name} are not rows of whole blocks")
        return GgufRows(kind, self._file.view(place))


def has_stored_blocks(folder: Path) -> bool:
    return (folder / BLOCKS_FILE).is_file()


def open_blocks(folder: Path) -> MappedFile:
    """The file of blocks. Refuses a damaged one."""
    try:
        return MappedFile(folder / BLOCKS_FILE)
    except (SafetensorError, OSError) as error:
        raise _damaged(folder, str(error)) from error


def _damaged(folder: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{folder / BLOCKS_FILE} is damaged: {what}; delete that file, or the folder to convert "
        "the GGUF file again"
    )
