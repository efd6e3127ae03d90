"""Reads the weights of a head from safetensors or torch files. Pickled code is never run."""

import json
import pickle
import zipfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from outrider.errors import ConfigError

_NAMES = ("model.safetensors", "pytorch_model.bin")


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors by stored name, on the CPU, memory-mapped."""
    tensors: dict[str, torch.Tensor] = {}
    for path in _files(folder):
        try:
            tensors |= load_file(path) if path.suffix == ".safetensors" else _unpickle(path)
        except (SafetensorError, OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"{path} is missing or damaged ({reason}); download the head again"
            ) from error
    return tensors


def _files(folder: Path) -> list[Path]:
    for name in _NAMES:
        index = folder / f"{name}.index.json"
        if index.is_file():
            return [folder / shard for shard in _shards(index)]
        if (folder / name).is_file():
            return [folder / name]
    raise ConfigError(f"{folder} has no {' and no '.join(_NAMES)}; download the head again")


def _shards(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{index} is damaged; download the head again") from error


def _unpickle(path: Path) -> dict[str, torch.Tensor]:
    # Files from before torch 1.6 are not zip archives and cannot be memory-mapped.
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    if not isinstance(tensors, dict) or not all(
        isinstance(tensor, torch.Tensor) for tensor in tensors.values()
    ):
        raise ConfigError(f"{path} holds no plain tensors; export the head's state_dict")
    return tensors
