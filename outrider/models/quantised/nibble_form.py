"""e2m1 numbers, two per byte, with a scale per group of inputs and perhaps one for all."""

import torch

from outrider.errors import ConfigError
from outrider.models.quantised.grouped_integers import quantised_weight
from outrider.models.quantised.packed_form import Parts, check_shape, is_one, two_axes
from outrider.ops.linear.quantised_weight import QuantisedWeight


class NibbleForm:
    """NVFP4 or MXFP4. `weight`, `scale` and `whole` are suffixes of stored tensors."""

    def __init__(
        self,
        weight: str,
        scale: str,
        whole: str = "",  # a scale of the whole weight, or none
        *,
        group: int,
        is_inverse: bool = False,  # numbers are divided by that scale
    ) -> None:
        self._weight = weight
        self._scale = scale
        self._whole = whole
        self._group = group
        self._is_inverse = is_inverse

    @property
    def scales(self) -> tuple[str, ...]:
        return (self._scale, self._whole) if self._whole else (self._scale,)

    def check(self, parts: Parts) -> None:
        rows, num_bytes = two_axes(self._weight, parts[self._weight])
        columns = 2 * num_bytes
        if columns % self._group:
            raise ConfigError(
                f"{self._weight} has {columns} inputs, which are not whole groups of {self._group}"
            )
        why = f"{self._weight} has {rows} rows of {columns} inputs in groups of {self._group}"
        check_shape(self._scale, parts[self._scale], (rows, columns // self._group), why)
        if self._whole and not is_one(parts[self._whole]):
            shape = list(parts[self._whole].shape)
            raise ConfigError(f"{self._whole} has the shape {shape}, and one number is needed")

    def shape(self, parts: Parts) -> tuple[int, int]:
        rows, num_bytes = parts[self._weight].shape
        return rows, 2 * num_bytes

    def quantised(self, parts: Parts) -> QuantisedWeight:
        codes, scale = parts[self._weight].view(torch.uint8), parts[self._scale]
        if scale.dtype == torch.float8_e8m0fnu:
            scale = scale.view(torch.uint8)
        factors = torch.empty(0)
        if self._whole:
            factors = self._factor(parts[self._whole]).expand(codes.shape[0])
        return quantised_weight("e2m1", codes, scale.t(), group=self._group, factors=factors)

    def _factor(self, stored: torch.Tensor) -> torch.Tensor:  # [1]
        factor = stored.float().view(1)
        if not self._is_inverse:
            return factor
        if not bool((factor.isfinite() & (factor != 0)).all()):
            raise ConfigError(f"{self._whole} is 0 or no number, and numbers are divided by it")
        return 1 / factor

    def unit(self, parts: Parts, dim: int) -> int:
        del parts
        return self._group if dim else 1

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        weight, scale = parts[self._weight], parts[self._scale]
        if dim:
            weight = weight.narrow(1, first // 2, num // 2)
            scale = scale.narrow(1, first // self._group, num // self._group)
        else:
            weight, scale = weight.narrow(0, first, num), scale.narrow(0, first, num)
        return {**parts, self._weight: weight, self._scale: scale}
