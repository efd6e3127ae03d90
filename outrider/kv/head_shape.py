"""The query heads of a model, as an attention backend needs them to size its workspace."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """The query heads of a model that runs on a backend."""

    heads: int
    head_dim: int  # of what a head reads: for latent attention, the channels of a latent
    is_latent: bool = False
