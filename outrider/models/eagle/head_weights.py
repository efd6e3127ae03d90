"""Reads the weights of a head from safetensors or torch files. Pickled code is never run."""

import pickle
import zipfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from outrider.errors import ConfigError
from outrider.hub.model_folder import pick_files, read_weight_map
from outrider.models.finite_weights import is_finite, warn_of_non_finite

_NAMES = ("model.safetensors", "pytorch_model.bin")
_MEDUSA_NAMES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")  # of the authors


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors by stored name, on the CPU, memory-mapped."""
    weight_map = _weight_map(folder)
    files = {name: _read_file(folder / name) for name in sorted(set(weight_map.values()))}
    holders: dict[str, list[str]] = {}
    for file, tensors in files.items():
        for name in tensors:
            holders.setdefault(name, []).append(file)
    picked = pick_files(holders, weight_map, folder)
    found = {name: files[file][name] for name, file in picked.items()}
    warn_of_non_finite(folder, [name for name in found if not is_finite(found[name])])
    return found


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path) if path.suffix == ".safetensors" else _unpickle(path)
    except (SafetensorError, OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{path} is missing or damaged ({reason}); download the head again"
        ) from error


def _weight_map(folder: Path) -> dict[str, str]:
    """The file of every tensor; one entry without a name for a head in a single file."""
    for name in (*_NAMES, *_MEDUSA_NAMES):
        index = folder / f"{name}.index.json"
        if index.is_file():
            return read_weight_map(index)
        if (folder / name).is_file():
            return {"": name}
    raise ConfigError(f"{folder} has no {' and no '.join(_NAMES)}; download the head again")


def _unpickle(path: Path) -> dict[str, torch.Tensor]:
    # Files from before torch 1.6 are not zip archives and cannot be memory-mapped.
    tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    if not isinstance(tensors, dict) or not all(
        isinstance(tensor, torch.Tensor) for tensor in tensors.values()
    ):
        raise ConfigError(f"{path} holds no plain tensors; export the head's state_dict")
    return tensors
