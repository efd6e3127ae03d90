"""Writes a wide model and its head as Hugging Face folders, a layer at a time on every core."""

import json
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from outrider.bench.machine import num_cores
from outrider.errors import ConfigError
from outrider.hub.atomic_folder import staged
from outrider.models.decoder_tensors import tensor_shapes
from outrider.models.eagle.head_tensors import LAYER

HEAD_FOLDER = "head"
_TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_TEXT = ("*token*", "*.jinja", "*.model", "*.tiktoken", "vocab.*", "merges.txt")  # files about text
_CPU = torch.device("cpu")
_MOST_WORKERS = 16  # each holds a layer in memory


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
    shapes = tensor_shapes(fit.wide)
    return _num_values(shapes, list(shapes)) * dtype.itemsize


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
    """One file per layer; as many layers as there are cores are in memory at a time."""
    shapes = tensor_shapes(small.fit.wide)
    shards = list(_shards(shapes))
    files = {
        f"model-{number:05}-of-{len(shards):05}.safetensors": names
        for number, names in enumerate(shards, start=1)
    }
    # The largest come first: one of them at the end would keep one core busy and the others idle.
    largest_first = sorted(files, key=lambda file: -_num_values(shapes, files[file]))
    _write_shards(
        {folder / file: files[file] for file in largest_first},
        WideTensors(small.fit, small.source, noise),
        num_workers=min(num_cores(), _MOST_WORKERS),
    )
    weight_map = {name: file for file, names in files.items() for name in names}
    total = num_bytes(small.fit, noise.dtype)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)


def _write_shards(
    files: Mapping[Path, list[str]],  # tensor names
    source: WideTensors,
    *,
    num_workers: int,
) -> None:
    """Make and write the files. A tensor is a function of its name: their order does not matter.

    torch draws random numbers on one core, and neither drawing nor writing holds Python's lock.
    """

    def write(path: Path) -> None:
        save_file({name: source.read(name) for name in files[path]}, path, {"format": "pt"})

    before = torch.get_num_threads()
    # One core for each worker: threads of torch within them would only compete.
    with ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        written = [pool.submit(write, path) for path in files]
    torch.set_num_threads(before)  # for threads that are started later
    for each in written:
        each.result()  # raises what the worker raised


def _num_values(shapes: Mapping[str, tuple[int, ...]], names: list[str]) -> int:
    return sum(torch.Size(shapes[name]).numel() for name in names)


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
