"""Which activation an expert has between its two projections. No torch."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGate:
    """gate * sigmoid(alpha * gate) * (up + shift), of clamped gates and ups."""

    limit: float = math.inf  # gates are at most this, ups between its negative and it
    alpha: float = 1.0
    shift: float = 0.0

    @property
    def is_swiglu(self) -> bool:
        """silu(gate) * up."""
        return self.alpha == 1.0 and self.shift == 0.0


SWIGLU = ExpertGate()
