"""`order_places_` on a CPU: new keys are merged, which takes a tenth of the time of sorting all."""

import torch

from outrider.ops.compiled.merged_keys import merge_context_keys
from outrider.ops.compiled.thread_team import run_alone

_FUNCTION = int(merge_context_keys.address)


def order_places_compiled_(
    by_place: torch.Tensor, keys: torch.Tensor, places: torch.Tensor, changed: slice
) -> None:
    tensors = by_place, keys, places
    assert all(each.is_contiguous() for each in tensors), "they are tables of their own"
    assert all(each.dtype == torch.int64 for each in tensors), "hashes of 64 bits"
    begin, stop, _ = changed.indices(by_place.shape[1])
    run_alone(_FUNCTION, (*by_place.shape, begin, stop, *(each.data_ptr() for each in tensors)))
