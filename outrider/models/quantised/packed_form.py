"""What every form of storing a quantised weight gives, and the checks that the forms share.

`parts` are the stored tensors of one module by suffix. A rank that reads a part of a weight narrows
these tensors first, in whole blocks, words and groups. An error begins with the suffix of the
tensor that does not fit, because the reader puts the module before it.
"""

from collections.abc import Mapping
from typing import Protocol

import torch

from outrider.errors import ConfigError
from outrider.ops.linear.quantised_weight import QuantisedWeight

Parts = Mapping[str, torch.Tensor]  # by suffix, such as weight_scale


class PackedForm(Protocol):
    """A form of storing a weight [out, in]."""

    @property
    def scales(self) -> tuple[str, ...]:
        """The suffixes of its scales, whose numbers must be finite."""
        ...

    def check(self, parts: Parts) -> None:
        """Refuse tensors whose sizes do not fit each other and config.json."""
        ...

    def shape(self, parts: Parts) -> tuple[int, int]: ...

    def quantised(self, parts: Parts) -> QuantisedWeight: ...  # [out, in]

    def unit(self, parts: Parts, dim: int) -> int:
        """Where the weight can be cut: at multiples of this; 0 if it cannot."""
        ...

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        """The parts of some rows or columns, from a multiple of `unit` on."""
        ...


def two_axes(suffix: str, stored: torch.Tensor) -> tuple[int, int]:
    """The sizes of a tensor that must have two, neither of them 0."""
    if stored.ndim != 2 or not stored.numel():
        raise ConfigError(f"{suffix} has the shape {list(stored.shape)}, and two sizes are needed")
    return stored.shape[0], stored.shape[1]


def check_shape(suffix: str, stored: torch.Tensor, expected: tuple[int, ...], why: str) -> None:
    """Refuse a tensor of another shape; `why` says what the shape follows from."""
    if tuple(stored.shape) != expected:
        raise ConfigError(
            f"{suffix} has the shape {list(stored.shape)} instead of {list(expected)}: {why}"
        )


def is_one(stored: torch.Tensor) -> bool:
    """Whether a tensor is one number, as exporters store a scale of a whole weight."""
    return stored.numel() == 1 and stored.ndim <= 2
