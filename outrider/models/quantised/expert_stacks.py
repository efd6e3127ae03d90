"""Experts of a layer in one tensor, read as one weight per expert and projection.

So they have the names of experts that are stored one by one.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from outrider.errors import ConfigError
from outrider.models.expert_tensors import STACKED_DOWN, STACKED_GATE_UP
from outrider.models.paired_experts import gates_first
from outrider.models.quantised.find_packed import PackedWeight, check_announced, check_type
from outrider.models.quantised.packed_form import PackedForm
from outrider.models.quantised.quantisation import Quantisation
from outrider.models.quantised.scaled_form import ScaledForm

_SCALES = ("_scale", "_scale_inv")  # of FBGEMM, of transformers
_FLOATS = ("F32", "F16", "BF16")
_HALVES = ("gate_proj", "up_proj")  # of gate_up_proj, one below the other


@dataclass(frozen=True, slots=True, kw_only=True)
class StackAxes:
    """How the tensor of all experts lies."""

    is_transposed: bool  # [experts, in, out] and not [experts, out, in]
    has_pairs: bool = False  # gates and ups alternate, as in gpt-oss
    block: tuple[int, ...] = ()  # outputs and inputs that share a scale; () if outputs have one


_OF_FBGEMM = StackAxes(is_transposed=True)
_OF_TRANSFORMERS = StackAxes(is_transposed=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stack:
    """One stored tensor [experts, ...]."""

    module: str
    suffix: str  # gate_up_proj or down_proj
    num: int  # experts
    outputs: int

    @property
    def halves(self) -> int:
        """Projections that lie one below the other, unless they alternate."""
        return 1 if STACKED_DOWN.endswith(self.suffix) else len(_HALVES)


def find_scaled_stacks(
    stored: Iterable[str],
    type_of: Callable[[str], str],
    shape_of: Callable[[str], tuple[int, ...]],
    quantisation: Quantisation,
) -> dict[str, PackedWeight]:
    """Experts in e4m3: as FBGEMM stores those of Llama-4, and as transformers stores others."""
    names = set(stored)
    found: dict[str, PackedWeight] = {}
    for name in sorted(each for each in names if each.endswith((STACKED_GATE_UP, STACKED_DOWN))):
        if type_of(name) != "F8_E4M3":
            continue
        check_announced(name, "fp8", quantisation)
        scale = next((name + each for each in _SCALES if name + each in names), "")
        if not scale:
            raise ConfigError(
                f"{name}{_SCALES[0]} of quantised experts is missing; download the model again"
            )
        check_type(scale, type_of(scale), (*_FLOATS, "F8_E8M0"))
        axes = _axes_of(name, names, shape_of)
        stack = _stack(name, shape_of(name), axes)
        block = _block_of_scales(stack, scale, shape_of(scale), quantisation.block)
        suffixes = stack.suffix, scale.rpartition(".")[2]
        form = ScaledForm(suffixes[1], block, weight=stack.suffix, has_blocks_only=bool(block))
        found |= dict(_weights(stack, replace(axes, block=block), form, suffixes))
    return found


def _axes_of(
    name: str, names: Collection[str], shape_of: Callable[[str], tuple[int, ...]]
) -> StackAxes:
    """How a stack lies, by the shapes of both stacks of its layer; FBGEMM's where one is alone."""
    module = name.rpartition(".experts.")[0]
    both = [module + each for each in (STACKED_GATE_UP, STACKED_DOWN)]
    shapes = [shape_of(each) for each in both if each in names]
    if len(shapes) < 2 or any(len(shape) != 3 for shape in shapes):
        return _OF_FBGEMM
    (_, first, second), (_, *down) = shapes
    return _OF_TRANSFORMERS if [second, first] == [down[0], 2 * down[1]] else _OF_FBGEMM


def _block_of_scales(
    stack: _Stack, name: str, shape: tuple[int, ...], block: tuple[int, ...]
) -> tuple[int, ...]:
    """The blocks of scales of this shape; () for one scale per expert, or per expert and output."""
    per_output = (stack.num, 1, stack.outputs), (stack.num, stack.outputs, 1)
    if math.prod(shape) == stack.num or shape in per_output:
        return ()
    if not block or len(shape) != 3 or shape[0] != stack.num:
        raise ConfigError(
            f"{name} has the shape {list(shape)} instead of {list(per_output[0])}: experts have "
            f"{stack.outputs} outputs; download the model again"
        )
    if stack.halves > 1 and stack.outputs // stack.halves % block[0]:
        raise ConfigError(
            f"{name} has blocks of {block[0]} outputs, in which gates and ups of experts meet; use "
            "a folder with experts one by one"
        )
    return block


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
    has_halves = not axes.has_pairs and stack.halves > 1
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
    """The rows of one projection [out, in], or their scales [out] or [out / block, in / block]."""
    own, (first, num) = stored[expert], rows
    if suffix != weight:
        return _scales_of_rows(own, rows, axes)
    if axes.is_transposed:
        own = own.t()
    if axes.has_pairs and not STACKED_DOWN.endswith(weight):
        own = gates_first(own, 0)
    return own.narrow(0, first, num)


def _scales_of_rows(own: torch.Tensor, rows: tuple[int, int], axes: StackAxes) -> torch.Tensor:
    """Those of one expert; a single one is that of all rows."""
    first, num = rows
    if not axes.block:
        flat = own.flatten()
        return flat if flat.numel() == 1 else flat.narrow(0, first, num)
    by_output = own.t() if axes.is_transposed else own
    return by_output.narrow(0, first // axes.block[0], -(-num // axes.block[0]))
