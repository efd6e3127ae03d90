"""Finds the quantised weights among stored tensors, by their types and by what lies beside them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from outrider.errors import ConfigError
from outrider.models.quantised.packed_form import PackedForm
from outrider.models.quantised.quantisation import METHODS, Quantisation
from outrider.models.quantised.stored_kind import SPOKEN, StoredKind
from outrider.models.quantised.weight_layouts import V4_SCALE, WeightLayout, layout_of


def _all_of(suffix: str, stored: torch.Tensor) -> torch.Tensor:
    del suffix
    return stored


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """A weight that several stored tensors make up."""

    form: PackedForm
    module: str  # before the suffixes of the stored tensors
    suffixes: tuple[str, ...]
    may_have_zero_bias: bool = False  # exporters of GPTQ store one for every layer
    # What belongs to this weight, by the suffix of a stored tensor and the tensor.
    pick: Callable[[str, torch.Tensor], torch.Tensor] = _all_of

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of the stored tensors."""
        return tuple(f"{self.module}.{suffix}" for suffix in self.suffixes)


def find_packed(
    names: Iterable[str], type_of: Callable[[str], str], quantisation: Quantisation
) -> dict[str, PackedWeight]:
    """The packed weights by name. Tensors that no form explains are left for the loader."""
    modules: dict[str, set[str]] = {}
    for name in names:
        module, _, suffix = name.rpartition(".")
        modules.setdefault(module, set()).add(suffix)
    found: dict[str, PackedWeight] = {}
    for module, suffixes in modules.items():
        types = {suffix: type_of(f"{module}.{suffix}") for suffix in suffixes if module}
        layout = layout_of(types, quantisation)
        if layout is not None:
            found[f"{module}.weight"] = _packed(module, types, layout, quantisation)
    return found


def _packed(
    module: str, types: Mapping[str, str], layout: WeightLayout, quantisation: Quantisation
) -> PackedWeight:
    check_announced(f"{module}.{layout.marker(types)}", layout.kind, quantisation)
    # ModelOpt leaves modules of DeepSeek-V4 as they are published, which is in codes.
    is_left = quantisation.method == "modelopt" and V4_SCALE in layout.types
    if quantisation.keeps(module) and not is_left:
        raise ConfigError(
            f"config.json lists {module} as not quantised, and it is stored quantised; use weights "
            "that belong to the config"
        )
    for suffix, allowed in layout.types.items():
        if suffix in types:
            check_type(f"{module}.{suffix}", types[suffix], allowed)
        elif suffix not in layout.optional:
            raise ConfigError(
                f"{module}.{suffix} of a quantised weight is missing; download the model again"
            )
    return PackedWeight(
        form=layout.form,
        module=module,
        suffixes=tuple(suffix for suffix in layout.types if suffix in types),
        may_have_zero_bias=layout.kind in ("gptq", "awq") and "bias" in types,
    )


def check_type(name: str, stored: str, allowed: tuple[str, ...]) -> None:
    """Refuse a tensor of another type than its form has."""
    if stored not in allowed:
        raise ConfigError(
            f"{name} is stored as {stored} instead of {' or '.join(allowed)}; download the model "
            "again"
        )


def check_announced(name: str, kind: StoredKind, quantisation: Quantisation) -> None:
    """Refuse a quantised tensor that config.json does not announce.

    Bits, groups and zero points of many kinds are only there, and a guess would load wrong numbers.
    """
    if not quantisation.method:
        raise ConfigError(
            f"{name} is quantised, and config.json has no quantization_config; use the config.json "
            f"of these weights, whose quant_method is one of {', '.join(METHODS)}"
        )
    if kind not in quantisation.kinds:
        announced = " or ".join(SPOKEN[each] for each in quantisation.kinds) or "dense weights"
        raise ConfigError(
            f"{name} is stored as {SPOKEN[kind]}, and config.json ({quantisation.method}) "
            f"announces {announced}; use the config.json of these weights"
        )
