"""Experts of a layer in one tensor, read as one weight per expert and projection.

So they have the names of experts that are stored one by one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from outrider.errors import ConfigError
from outrider.models.expert_tensors import STACKED_DOWN, STACKED_GATE_UP
from outrider.models.paired_experts import gates_first
from outrider.models.quantised.find_packed import PackedWeight, check_announced, check_type
from outrider.models.quantised.packed_form import PackedForm
from outrider.models.quantised.quantisation import Quantisation
from outrider.models.quantised.scaled_form import ScaledForm

_SCALE = "_scale"
_HALVES = ("gate_proj", "up_proj")  # of gate_up_proj, one below the other


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAxes:
    """How the tensor of all experts lies."""

    is_transposed: bool  # [experts, in, out] and not [experts, out, in]
    has_pairs: bool = False  # gates and ups alternate, as in gpt-oss


_OF_FBGEMM = StackAxes(is_transposed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """One stored tensor [experts, ...]."""

    module: str
    suffix: str  # gate_up_proj or down_proj
    num: int  # experts
    outputs: int


def find_scaled_stacks(
    stored: Iterable[str],
    type_of: Callable[[str], str],
    shape_of: Callable[[str], tuple[int, ...]],
    quantisation: Quantisation,
) -> dict[str, PackedWeight]:
    """The experts of Llama-4 in e4m3 with a scale per output, as FBGEMM stores them."""
    names = set(stored)
    found: dict[str, PackedWeight] = {}
    for name in sorted(each for each in names if each.endswith((STACKED_GATE_UP, STACKED_DOWN))):
        if type_of(name) != "F8_E4M3":
            continue
        check_announced(name, "fp8", quantisation)
        stack, scale = _stack(name, shape_of(name), _OF_FBGEMM), name + _SCALE
        if scale not in names:
            raise ConfigError(f"{scale} of quantised experts is missing; download the model again")
        check_type(scale, type_of(scale), ("F32", "F16", "BF16"))
        shapes = (stack.num, 1, stack.outputs), (stack.num, stack.outputs, 1)
        if shape_of(scale) not in shapes:
            raise ConfigError(
                f"{scale} has the shape {list(shape_of(scale))} instead of {list(shapes[0])}: "
                f"{name} has the shape {list(shape_of(name))}; download the model again"
            )
        form = ScaledForm(stack.suffix + _SCALE, (), weight=stack.suffix)
        suffixes = stack.suffix, stack.suffix + _SCALE
        found |= dict(_weights(stack, _OF_FBGEMM, form, suffixes))
    return found


def slice_stack(
    name: str, shape: tuple[int, ...], axes: StackAxes, make_form: Callable[[str], PackedForm]
) -> dict[str, PackedWeight]:
    """The weights of one stored tensor, in the form that is made of its suffix."""
    stack = _stack(name, shape, axes)
    return dict(_weights(stack, axes, make_form(stack.suffix), (stack.suffix,)))


def _stack(name: str, shape: tuple[int, ...], axes: StackAxes) -> _Stack:
    if len(shape) != 3:
        raise ConfigError(
            f"{name} has the shape {list(shape)}, and experts in one tensor have three sizes; "
            "download the model again"
        )
    module, _, suffix = name.rpartition(".")
    outputs = shape[2] if axes.is_transposed else shape[1]
    return _Stack(module=module, suffix=suffix, num=shape[0], outputs=outputs)


def _weights(
    stack: _Stack, axes: StackAxes, form: PackedForm, suffixes: tuple[str, ...]
) -> Iterator[tuple[str, PackedWeight]]:
    """Name and weight of every projection of every expert."""
    has_halves = not axes.has_pairs and not STACKED_DOWN.endswith(stack.suffix)
    parts = _HALVES if has_halves else (stack.suffix,)
    num = stack.outputs // len(parts)
    for expert in range(stack.num):
        for place, projection in enumerate(parts):
            pick = partial(
                _pick, weight=stack.suffix, axes=axes, expert=expert, rows=(place * num, num)
            )
            packed = PackedWeight(form=form, module=stack.module, suffixes=suffixes, pick=pick)
            yield f"{stack.module}.{expert}.{projection}.weight", packed


def _pick(
    suffix: str,
    stored: torch.Tensor,
    *,
    weight: str,
    axes: StackAxes,
    expert: int,
    rows: tuple[int, int],  # the first, and their number
) -> torch.Tensor:
    """The rows of one projection [out, in], or their scales [out]."""
    own = stored[expert]
    if suffix != weight:
        own = own.flatten()
    elif axes.is_transposed:
        own = own.t()
    if axes.has_pairs and not STACKED_DOWN.endswith(weight):
        own = gates_first(own, 0)
    return own.narrow(0, *rows)
