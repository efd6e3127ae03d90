"""Finds the quantised weights among stored tensors, by their types and by what lies beside them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from outrider.errors import ConfigError
from outrider.models.quantised.packed_weights import (
    AwqWords,
    GptqWords,
    GroupedWords,
    NibbleForm,
    PackedForm,
    ScaledForm,
)
from outrider.models.quantised.quantisation import Quantisation

# Scales of activations, which are computed in their own type here, and of the KV cache, which
# `stored_kv_scales` finds.
UNUSED = (
    "input_scale",
    "activation_scale",
    "input_global_scale",
    "k_scale",
    "v_scale",
    "kv_scale",
    "output_scale",
)
_SCALES = ("weight_scale_inv", "weight_scale", "scale")
_SCALED_TYPES = ("F8_E4M3", "I8")


def _all_of(stored: torch.Tensor) -> torch.Tensor:
    return stored


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight that several stored tensors make up."""

    form: PackedForm
    suffixes: tuple[str, ...]  # of the stored tensors
    may_have_zero_bias: bool = False  # exporters of GPTQ store one for every layer
    module: str = ""  # where the tensors are, unless the weight's name says it
    pick: Callable[[torch.Tensor], torch.Tensor] = _all_of  # what belongs to it of each tensor


def find_packed(
    names: Iterable[str], type_of: Callable[[str], str], quantisation: Quantisation
) -> dict[str, PackedWeight]:
    """The packed weights by module. Tensors that no form explains are left for the loader."""
    modules: dict[str, set[str]] = {}
    for name in names:
        module, _, suffix = name.rpartition(".")
        modules.setdefault(module, set()).add(suffix)
    found: dict[str, PackedWeight] = {}
    for module, suffixes in modules.items():
        types = {suffix: type_of(f"{module}.{suffix}") for suffix in suffixes if module}
        packed = _form_of(types, quantisation)
        if packed is not None:
            if quantisation.keeps(module):
                raise ConfigError(
                    f"config.json lists {module} as not quantised, and it is stored quantised; "
                    "use weights that belong to the config"
                )
            found[module] = packed
    return found


def _form_of(types: Mapping[str, str], quantisation: Quantisation) -> PackedWeight | None:
    """The form of one module, by the suffixes and types of its tensors."""
    if "qweight" in types:
        own = ("qweight", "qzeros", "scales")
        form: PackedForm = AwqWords() if quantisation.method == "awq" else GptqWords(quantisation)
        packed = _complete(form, own, types, optional=("g_idx",))
        return replace(packed, may_have_zero_bias="bias" in types)
    if "weight_packed" in types:
        return _compressed(types, quantisation)
    scales = [suffix for suffix in _SCALES if suffix in types]
    if types.get("weight") == "U8" and "weight_scale_2" in types:
        form = NibbleForm("weight", "weight_scale", "weight_scale_2")
        return _complete(form, ("weight", "weight_scale", "weight_scale_2"), types)
    if types.get("weight") == "I8" and types.get("scale") == "F8_E8M0":  # DeepSeek-V4's experts
        return _complete(NibbleForm("weight", "scale"), ("weight", "scale"), types)
    if types.get("weight") in _SCALED_TYPES and scales:
        return _complete(ScaledForm(scales[0], quantisation), ("weight", scales[0]), types)
    return None


def _compressed(types: Mapping[str, str], quantisation: Quantisation) -> PackedWeight:
    """The forms of compressed-tensors whose numbers share words or bytes."""
    if types["weight_packed"] == "I32":
        own = ("weight_packed", "weight_scale", "weight_shape")
        others = ("weight_zero_point", "weight_g_idx")
        return _complete(GroupedWords(quantisation), own, types, optional=others)
    if "weight_global_scale" in types:
        form = NibbleForm("weight_packed", "weight_scale", "weight_global_scale", is_inverse=True)
        own = ("weight_packed", "weight_scale", "weight_global_scale")
        return _complete(form, own, types)
    return _complete(
        NibbleForm("weight_packed", "weight_scale"), ("weight_packed", "weight_scale"), types
    )


def _complete(
    form: PackedForm,
    own: tuple[str, ...],
    types: Mapping[str, str],
    *,
    optional: tuple[str, ...] = (),
) -> PackedWeight:
    missing = [suffix for suffix in own if suffix not in types]
    if missing:
        raise ConfigError(
            f"a quantised weight lacks {', '.join(missing)} beside {own[0]}; download the model "
            "again"
        )
    return PackedWeight(form, (*own, *(suffix for suffix in optional if suffix in types)))
