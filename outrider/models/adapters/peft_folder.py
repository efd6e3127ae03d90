"""The two matrices of every module of a LoRA adapter, read from its PEFT folder and checked."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from outrider.errors import RequestError
from outrider.hub.adapter_folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    find_adapter,
    parts_in,
)
from outrider.models.adapters.peft_config import PeftConfig, parse_peft_config
from outrider.wire.adapter import Adapter, AdapterFiles, PeftFiles

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_NUM_NAMED = 4  # modules that an error message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraPair:
    """The matrices of one module, as stored: it adds scale * B A x."""

    a: torch.Tensor  # [rank, in]
    b: torch.Tensor  # [out, rank]
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptableModules:
    """The linear layers that an adapter may change, by the names of their weights."""

    shapes: Mapping[str, tuple[int, ...]]  # [out, in] of the whole model, before ranks cut it
    names: "AdapterNames"
    max_rank: int


class AdapterNames(Protocol):
    """How the names of a folder become ours."""

    def as_found(self, stored: Collection[str], /) -> "AdapterNames":
        """The same, for a folder with these names."""
        ...

    def our_name(self, stored: str, /) -> str: ...


def read_files(adapter: Adapter) -> AdapterFiles:
    """The files of one version of an adapter; they are not parsed yet."""
    folder = Path(adapter.path)
    _check_version(adapter)
    try:
        parts = {part: _read_part(folder / part) for part in parts_in(folder)}
    except OSError as error:
        raise RequestError(f"{folder} cannot be read ({error}); save the adapter again") from error
    _check_version(adapter)  # the files must belong together
    return AdapterFiles(adapter=adapter, parts=parts)


def _read_part(folder: Path) -> PeftFiles:
    return PeftFiles(
        config=(folder / ADAPTER_CONFIG).read_bytes(),
        weights=(folder / ADAPTER_WEIGHTS).read_bytes(),
    )


def _check_version(adapter: Adapter) -> None:
    if find_adapter(adapter.path).version != adapter.version:
        raise RequestError(f"{adapter.path} was replaced while a request used it; send it again")


def parse_adapter(files: PeftFiles, folder: Path, modules: AdaptableModules) -> dict[str, LoraPair]:
    """The matrices by the name of the weight that they change, such as `...q_proj.weight`."""
    config = parse_peft_config(files.config, folder / ADAPTER_CONFIG)
    tensors = _parse_tensors(files.weights, folder / ADAPTER_WEIGHTS)
    stored = _stored_names(tensors, modules)
    _check_modules(stored.keys(), config, modules)
    return {
        f"{module}.weight": _pair_of(tensors, name, module, config, modules)
        for module, name in stored.items()
    }


def _parse_tensors(weights: bytes, path: Path) -> dict[str, torch.Tensor]:
    """All tensors. No file is mapped: one that is cut off while it is used ends the process."""
    try:
        tensors: dict[str, torch.Tensor] = load(weights)
    except (SafetensorError, ValueError, KeyError) as error:  # KeyError: an unknown type
        raise RequestError(
            f"{path} is damaged ({error}); save the adapter again with PEFT"
        ) from error
    return tensors


def _stored_names(names: Iterable[str], modules: AdaptableModules) -> dict[str, str]:
    """The stored name of each module, by ours."""
    all_names = set(names)
    stray = sorted(name for name in all_names if not name.endswith((_A, _B)))
    if stray:
        raise RequestError(
            f"the adapter has tensors that are not LoRA matrices: {_listed(stray)}; train it "
            "without modules_to_save, bias and DoRA"
        )
    stored = {name.removesuffix(_A).removesuffix(_B) for name in all_names}
    lonely = sorted(name for name in stored if not {name + _A, name + _B} <= all_names)
    if lonely:
        raise RequestError(
            f"the adapter has only one matrix of {_listed(lonely)}; save it again with PEFT"
        )
    plain = {name: name.removeprefix(_PREFIX) for name in stored}
    names_of = modules.names.as_found(plain.values())
    return {names_of.our_name(ours): name for name, ours in sorted(plain.items())}


def _check_modules(found: Collection[str], config: PeftConfig, modules: AdaptableModules) -> None:
    """Refuse modules that cannot be adapted, and a file without some that its config names."""
    known = {name.removesuffix(".weight") for name in modules.shapes}
    unknown = sorted(set(found) - known)
    if unknown:
        usual = sorted({name.rpartition(".")[2] for name in known})
        raise RequestError(
            f"adapters cannot change {_listed(unknown)} of this model; train with target_modules "
            f"among {', '.join(usual)}"
        )
    others = sorted(module for module in found if not config.is_target(module))
    if others:
        raise RequestError(
            f"the adapter has matrices of {_listed(others)}, which its target_modules do not name; "
            "save it again with PEFT"
        )
    lacking = sorted(known - set(found)) if config.has_all_layers else []
    lacking = [module for module in lacking if config.is_target(module)]
    if lacking or not found:
        raise RequestError(
            f"the adapter has no matrices of {_listed(lacking) or 'any module'}; save it again "
            "with PEFT"
        )


def _pair_of(
    tensors: Mapping[str, torch.Tensor],
    stored: str,
    module: str,
    config: PeftConfig,
    modules: AdaptableModules,
) -> LoraPair:
    outputs, inputs = modules.shapes[f"{module}.weight"]
    rank = config.rank_of(module)
    if rank > modules.max_rank:
        raise RequestError(
            f"{module} of the adapter has rank {rank}, and this engine has room for "
            f"{modules.max_rank}; start it with --max-lora-rank {rank}"
        )
    for name, shape in ((stored + _A, (rank, inputs)), (stored + _B, (outputs, rank))):
        _check_matrix(name, tensors[name], shape)
    a, b = tensors[stored + _A], tensors[stored + _B]
    return LoraPair(a=a, b=b, scale=config.scale_of(module))


def _check_matrix(name: str, matrix: torch.Tensor, shape: tuple[int, int]) -> None:
    if matrix.shape != shape:
        raise RequestError(
            f"{name} of the adapter is {list(matrix.shape)} instead of {list(shape)}; use an "
            "adapter that was trained for this model"
        )
    if matrix.dtype not in _FLOATS:
        raise RequestError(
            f"{name} of the adapter is stored as {matrix.dtype}; use {', '.join(map(str, _FLOATS))}"
        )
    if not torch.isfinite(matrix).all():
        raise RequestError(
            f"{name} of the adapter has values that are not finite; train or save it again"
        )


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_NUM_NAMED])
    rest = len(names) - _NUM_NAMED
    return f"{shown} and {rest} more" if rest > 0 else shown
