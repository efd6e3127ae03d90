"""Converts a GGUF file to a Hugging Face folder, one tensor at a time to save memory."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from outrider.errors import ConfigError
from outrider.hub.block_file import BLOCK_KINDS, BLOCKS_FILE, block_name, split_name
from outrider.hub.download_progress import Reporter, reported
from outrider.hub.gguf_config import config_of
from outrider.hub.gguf_names import (
    IN_CONFIG,
    GgufFamily,
    check_gguf_tensors,
    gguf_family_of,
    hugging_face_name,
)
from outrider.hub.gguf_read import GgufFile, RawArray, StoredTensor, dequantized, read_gguf
from outrider.hub.gguf_tokenizer import generation_config_of, tokenizer_config_of, tokenizer_of

_DTYPES = {"F16": "F16", "BF16": "BF16"}  # every other kind is written as F32
_WIDTHS = {"F16": 2, "BF16": 2, "F32": 4, "U8": 1}  # bytes per element
_MOST_FLOAT_BYTES = 4 << 30  # of a folder with floats beside all blocks
_CHUNK_BYTES = 1 << 24  # of output that is converted and written at once


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """One tensor of a safetensors file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: RawArray  # as the GGUF file has it
    kind: str  # what rows are widened from; empty for rows that are copied
    row_order: RawArray  # [rows] the stored row of each written row

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * _WIDTHS[self.dtype]

    @property
    def num_bytes(self) -> int:
        return self.shape[0] * self.row_bytes

    def rows(self, places: RawArray) -> bytes:
        """The bytes of these stored rows, as they are written."""
        stored = self.raw[places]
        return (dequantized(stored, self.kind) if self.kind else stored).tobytes()


def convert(path: Path, folder: Path, reporter: Reporter) -> None:
    """Write config.json, the tokenizer files, model.safetensors and the blocks into `folder`.

    Any library reads the floats of a small model. Those of a large one would take several times the
    disk of its file: weights that are stored in blocks have no floats then.
    """
    file = read_gguf(path)
    family = gguf_family_of(file)
    check_gguf_tensors(file, family)
    config = config_of(file, family)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation_config_of(file))
    _write_json(folder / "tokenizer_config.json", tokenizer_config_of(file))
    (folder / "tokenizer.json").write_text(tokenizer_of(file).to_str(), encoding="utf-8")
    heads = _heads_by_tensor(config) if family.is_interleaved else {}
    blocks, floats = _blocks(file, family, heads), _outputs(file, family, heads)
    if sum(output.num_bytes for output in floats) > _MOST_FLOAT_BYTES:
        coded = {split_name(output.name)[0] for output in blocks}
        floats = tuple(output for output in floats if output.name not in coded)
    files = {folder / "model.safetensors": floats, folder / BLOCKS_FILE: blocks}
    total = sum(output.num_bytes for outputs in files.values() for output in outputs)
    with reported(reporter, f"converting {file.name}", total) as advance:
        for path, outputs in files.items():
            if outputs:
                _write_safetensors(path, outputs, advance)


def _heads_by_tensor(config: dict[str, Any]) -> dict[str, int]:
    return {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}


def _outputs(file: GgufFile, family: GgufFamily, heads: dict[str, int]) -> tuple[_Output, ...]:
    return tuple(
        _Output(
            name=name,
            dtype=_DTYPES.get(stored.kind, "F32"),
            shape=stored.shape,
            raw=stored.raw - 1 if family.has_shifted_norms and _is_norm(name) else stored.raw,
            kind=stored.kind,
            row_order=_row_order(stored, heads),
        )
        for name, stored in _written(file, family)
    )


def _blocks(file: GgufFile, family: GgufFamily, heads: dict[str, int]) -> tuple[_Output, ...]:
    """The rows of matrices of blocks as they are, under names that tell their kinds."""
    return tuple(
        _Output(
            name=block_name(name, stored.kind),
            dtype="U8",
            shape=stored.raw.shape,
            raw=stored.raw,
            kind="",
            row_order=_row_order(stored, heads),
        )
        for name, stored in _written(file, family)
        if stored.kind in BLOCK_KINDS and len(stored.shape) == 2
    )


def _written(file: GgufFile, family: GgufFamily) -> Iterator[tuple[str, StoredTensor]]:
    """The Hugging Face name of every tensor that is written; experts one by one."""
    for place, stored in file.tensors.items():
        if place in IN_CONFIG:
            continue
        name = hugging_face_name(place, family)
        if "{}" not in name:
            yield name, stored
            continue
        if len(stored.shape) != 3:
            raise ConfigError(f"{place} has no axis of experts; use another GGUF file")
        for expert, raw in enumerate(stored.raw):
            own = f"{place}.{expert}"
            yield name.format(expert), replace(stored, name=own, shape=stored.shape[1:], raw=raw)


def _is_norm(name: str) -> bool:
    return name.endswith("norm.weight")


def _row_order(stored: StoredTensor, heads: dict[str, int]) -> RawArray:  # [rows]
    """Undo the interleaving of rotary rows: stored pairs (i, i + half) become two halves again."""
    rows = np.arange(stored.shape[0])
    module = stored.name.split(".")[-2]
    if module not in heads:
        return rows
    if len(rows) % (2 * heads[module]):
        raise ConfigError(
            f"{stored.name} has {len(rows)} rows for {heads[module]} heads; use another GGUF file"
        )
    pairs = rows.reshape(heads[module], -1, 2)  # [heads, half, 2]
    return pairs.swapaxes(1, 2).reshape(-1)


def _write_safetensors(
    path: Path, outputs: tuple[_Output, ...], advance: Callable[[int], None]
) -> None:
    with open(path, "wb") as sink:
        sink.write(_header(outputs))
        for output in outputs:
            rows_at_once = max(1, _CHUNK_BYTES // output.row_bytes)
            for start in range(0, len(output.row_order), rows_at_once):
                chosen = output.row_order[start : start + rows_at_once]
                advance(sink.write(output.rows(chosen)))
        sink.flush()
        # Before the folder is renamed, so that a power cut leaves no empty file.
        os.fsync(sink.fileno())


def _header(outputs: tuple[_Output, ...]) -> bytes:
    """The header of a safetensors file: its length and JSON, padded to align the tensors."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for output in outputs:
        entries[output.name] = {
            "dtype": output.dtype,
            "shape": output.shape,
            "data_offsets": (offset, offset + output.num_bytes),
        }
        offset += output.num_bytes
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
