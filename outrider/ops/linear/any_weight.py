"""A weight of a linear layer, dense or quantised: how its rows are stacked, cut and reordered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from outrider.ops.linear.block_weight import BlockWeight, stack_blocks
from outrider.ops.linear.quantised_weight import INT4_MIDDLE, GroupScales, QuantisedWeight

AnyWeight = torch.Tensor | QuantisedWeight | BlockWeight  # [out, in]


def widened(weight: AnyWeight) -> torch.Tensor:  # [out, in]
    """The numbers of a weight; quantised ones in float32."""
    return weight if isinstance(weight, torch.Tensor) else weight.widen()


def place_weight(weight: AnyWeight, device: torch.device, dtype: torch.dtype) -> AnyWeight:
    """The weight on a device: a dense one in this type, a quantised one as it is stored."""
    if isinstance(weight, BlockWeight):  # of a CPU: other devices have no kernels for them
        return weight
    if isinstance(weight, QuantisedWeight):
        return weight.to(device)
    return weight.to(device, dtype)


def stack_weights(weights: Sequence[AnyWeight]) -> AnyWeight:
    """One weight with the rows of all. It is quantised if all are, in one kind."""
    if len(weights) == 1:
        return weights[0]
    stacked = _stack_codes(weights)
    return torch.cat([widened(each) for each in weights]) if stacked is None else stacked


def fuse_weights(
    weights: Mapping[str, AnyWeight],
    stack_rows: Callable[[Callable[[str], torch.Tensor]], torch.Tensor],
) -> AnyWeight:
    """The rows of several weights, in the order that `stack_rows` gives to tensors of these names.

    It must copy rows and nothing else.
    """
    stacked = _stack_codes(list(weights.values()))
    if stacked is None:
        return stack_rows(lambda name: widened(weights[name]))
    places = torch.arange(stacked.shape[0])
    parts = torch.split(places[:, None], [each.shape[0] for each in weights.values()])
    by_name = dict(zip(weights, parts, strict=True))
    order = stack_rows(by_name.__getitem__).squeeze(1)
    return stacked if torch.equal(order, places) else stacked.rows(order)


def rearrange_rows(
    weight: AnyWeight, rearrange: Callable[[torch.Tensor], torch.Tensor]
) -> AnyWeight:
    """What `rearrange` makes of the rows. It must copy rows and nothing else."""
    if isinstance(weight, torch.Tensor):
        return rearrange(weight)
    places = torch.arange(weight.shape[0], device=weight.device)
    return weight.rows(rearrange(places[:, None]).squeeze(1))


def _stack_codes(weights: Sequence[AnyWeight]) -> QuantisedWeight | BlockWeight | None:
    """One weight with the codes of all; None where only their numbers can be stacked."""
    blocks = [each for each in weights if isinstance(each, BlockWeight)]
    if len(blocks) == len(weights):
        return stack_blocks(blocks)
    alike = _quantised_alike(weights)
    return _stack_quantised(alike) if alike else None


def _quantised_alike(weights: Sequence[AnyWeight]) -> list[QuantisedWeight]:
    """The weights, if all are quantised and one kernel can read them together; else none."""
    quantised = [each for each in weights if isinstance(each, QuantisedWeight)]
    if len(quantised) < len(weights):
        return []
    return quantised if all(are_alike(quantised[0], each) for each in quantised) else []


def are_alike(first: QuantisedWeight, other: QuantisedWeight) -> bool:
    """Whether the rows of both can be rows of one weight."""
    return (
        (other.kind, other.block) == (first.kind, first.block)
        and other.scales.group == first.scales.group
        and other.scales.scales.dtype == first.scales.scales.dtype
        and torch.equal(other.order, first.order)
    )


def _stack_quantised(weights: Sequence[QuantisedWeight]) -> QuantisedWeight:
    if len(weights) == 1:
        return weights[0]
    parts = [_with_all_parts(each, weights) for each in weights]
    return replace(
        weights[0],
        codes=_joined([each.codes for each in weights], 0),
        scales=GroupScales(
            scales=_joined([each.scales for each in parts], 1),
            zeros=_joined([each.zeros for each in parts], 1),
            factors=torch.cat([each.factors for each in parts]),
            group=parts[0].group,
        ),
    )


def _joined(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """As bytes where they are: not every version of torch joins float8 on every device."""
    dtype = parts[0].dtype
    if dtype.itemsize > 1:
        return torch.cat(list(parts), dim)
    return torch.cat([part.view(torch.uint8) for part in parts], dim).view(dtype)


def _with_all_parts(weight: QuantisedWeight, beside: Sequence[QuantisedWeight]) -> GroupScales:
    """The scales of a weight, with zero points and factors if another weight has them."""
    scales = weight.scales
    if not len(scales.zeros) and any(len(each.scales.zeros) for each in beside):
        middle = INT4_MIDDLE if weight.kind == "int4" else 0
        zeros = torch.full_like(scales.scales, middle, dtype=scales.zeros.dtype)
        scales = replace(scales, zeros=zeros)
    if not len(scales.factors) and any(len(each.scales.factors) for each in beside):
        scales = replace(scales, factors=weight.scales.factors.new_ones(weight.shape[0]))
    return scales
