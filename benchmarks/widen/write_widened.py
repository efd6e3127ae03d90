"""Writes a wide model and its head as Hugging Face folders, a layer at a time."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.steps.body import Body
from benchmarks.widen.fit_body import Fit, model_fields
from benchmarks.widen.load_widened import OpenedModels, opened
from benchmarks.widen.places import Noise
from benchmarks.widen.widened_head import widen_head
from benchmarks.widen.widened_tensors import WideTensors
from outrider.errors import ConfigError
from outrider.hub.atomic_folder import staged
from outrider.models.decoder_tensors import tensor_shapes
from outrider.models.eagle.head_tensors import LAYER

HEAD_FOLDER = "head"
_TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_TEXT = ("*token*", "*.jinja", "*.model", "*.tiktoken", "vocab.*", "merges.txt")  # files about text
_CPU = torch.device("cpu")


def write_widened(
    folder: Path,
    body: Body,
    out: Path,
    *,
    heads: tuple[Path, ...],  # one, or none
    dtype: str,
) -> int:
    """Write a new folder, with the head in a subfolder; returns the bytes of all tensors."""
    if out.exists():
        raise ConfigError(f"{out} exists already; remove it or choose another --out")
    noise = Noise(_TYPES[dtype], _CPU)
    with opened(folder, body, heads) as small:
        needed = num_bytes(small.fit, noise.dtype)
        _check_room(out, needed)
        with staged(out) as partial:
            _write_model(partial, small, noise)
            fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            _write_json(partial / "config.json", model_fields(small.fit, fields, dtype=dtype))
            _copy_text(folder, partial)
            for head in small.heads:
                wide = widen_head(head, small.fit, small.source, noise)
                _write_head(partial / HEAD_FOLDER, wide.fields, wide.tensors, dtype=dtype)
                _copy_text(folder, partial / HEAD_FOLDER)
    return needed


def num_bytes(fit: Fit, dtype: torch.dtype) -> int:
    """Bytes of all tensors of the wide model."""
    shapes = tensor_shapes(fit.wide).values()
    return sum(torch.Size(shape).numel() for shape in shapes) * dtype.itemsize


def _check_room(out: Path, needed: int) -> None:
    """Refuse a disk that is too small before minutes are spent on it."""
    parent = next(path for path in out.absolute().parents if path.exists())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise ConfigError(
            f"the model takes {needed / 1e9:.1f} GB and {parent} has {free / 1e9:.1f} GB left; "
            "make room, or choose another --out, a smaller --body or --dtype bfloat16"
        )


def _write_model(folder: Path, small: OpenedModels, noise: Noise) -> None:
    """One file per layer: no more than that is in memory."""
    source = WideTensors(small.fit, small.source, noise)
    shapes = tensor_shapes(small.fit.wide)
    shards = list(_shards(shapes))
    weight_map = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({name: source.read(name) for name in names}, folder / file, {"format": "pt"})
        weight_map.update(dict.fromkeys(names, file))
    total = num_bytes(small.fit, noise.dtype)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)


def _shards(shapes: Mapping[str, Any]) -> Iterator[list[str]]:
    """Tensor names by layer; a name outside of layers is alone."""
    layers: dict[str, list[str]] = {}
    for name in shapes:
        prefix = ".".join(name.split(".")[:3])  # model.layers.0, or model.norm.weight
        layers.setdefault(prefix, []).append(name)
    yield from layers.values()


def _write_head(
    folder: Path, fields: dict[str, Any], tensors: Mapping[str, torch.Tensor], *, dtype: str
) -> None:
    folder.mkdir()
    named = {name.replace(LAYER, "midlayer."): each for name, each in tensors.items()}
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    _write_json(folder / "config.json", fields | {"torch_dtype": dtype})


def _copy_text(folder: Path, goal: Path) -> None:
    """Copy the files of the tokenizer, of the chat template and of the end tokens."""
    names = {path.name for pattern in _TEXT for path in folder.glob(pattern)}
    for name in sorted(names | {"generation_config.json"}):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, goal / name)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
