"""Builds modules of transformers from the tensors of a folder, which must match exactly."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from outrider.models.safetensors_reader import Checkpoint

MakeModule = Callable[[], nn.Module]


def find_prefix(folder: Path, prefixes: Sequence[str]) -> str:
    """The first of these that some tensor has; the last if none has."""
    with Checkpoint(folder) as checkpoint:
        names = tuple(checkpoint.names)
    found = [each for each in prefixes if any(name.startswith(each) for name in names)]
    return found[0] if found else prefixes[-1]


def load_modules(
    folder: Path,
    makers: Mapping[str, MakeModule],  # by the prefix of their tensors
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, nn.Module]:
    """The modules by prefix. A tensor too many, too few or of another shape is refused by name."""
    with torch.device(device):  # weights are made where they will be, and then overwritten
        modules = {prefix: _cast(make(), dtype).eval() for prefix, make in makers.items()}
    stored = {
        prefix + name: tensor
        for prefix, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
    with Checkpoint(folder) as checkpoint:
        shapes = {name: tuple(tensor.shape) for name, tensor in stored.items()}
        checkpoint.check(shapes, among=lambda name: name.startswith(tuple(makers)))
        with torch.no_grad():
            for name, tensor in stored.items():
                tensor.copy_(checkpoint.read(name))
    for module in modules.values():
        module.requires_grad_(False)
    return modules


def _cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The stored tensors in this type. Others keep theirs: a rounded frequency is a wrong angle."""
    with torch.no_grad():
        for tensor in module.state_dict(keep_vars=True).values():
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)
    return module
