"""The places of finished texts, in the order of the contexts before them."""

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled

_COMPILED = "outrider.ops.compiled.merged_keys"


def order_places_(
    by_place: torch.Tensor,  # [contexts, size] int64
    keys: torch.Tensor,  # [contexts, size] int64: written, ascending
    places: torch.Tensor,  # [contexts, size] int64: written; of equal keys the latest is last
    changed: slice,  # of places, whose keys are new
) -> None:
    """Put places in order again. Those outside of `changed` are in order already."""
    if is_compiled(by_place, _COMPILED):
        from outrider.ops.tree.context_order_compiled import order_places_compiled_

        return order_places_compiled_(by_place, keys, places, changed)
    return order_places_reference_(by_place, keys, places)


def order_places_reference_(
    by_place: torch.Tensor, keys: torch.Tensor, places: torch.Tensor
) -> None:
    """The same by sorting all of them."""
    ordered = by_place.sort(dim=1, stable=True)
    keys.copy_(ordered.values)
    places.copy_(ordered.indices)
