"""Repairs the result of attention where keys that a query does not see are not finite.

Attention in torch adds -inf to the scores of masked keys and multiplies their values by 0. With NaN
or infinity there, both give NaN. This is rare: the result itself shows whether it happened. The
check reads the result on the host, so it runs in a graph break.

Such keys are those of a request that failed, on pages that another request has now. They stay until
a token is written there, which can take many steps, so they are replaced by zeros when first met.
"""

import math
from collections.abc import Callable

import torch

from outrider.ops.attention.kv_codes import as_moved

# From queries, and what their rows stored, to what the queries read.
AttendStored = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def recompute_without_bad_keys(
    attend: AttendStored,
    query: torch.Tensor,  # [rows * width, heads, head_dim]
    stored: torch.Tensor,  # [vectors * rows, keys, dim]
    layer: torch.Tensor,  # [pages, page_size, vectors, dim] where it is stored
    slots: torch.Tensor,  # [rows, keys]
    mask: torch.Tensor,  # [rows, width, keys] of this layer
    whole: torch.Tensor,  # [rows, width, keys] as if the layer had no sliding window
    out: torch.Tensor,  # [rows * width, heads, channels] overwritten if it is not finite
) -> None:
    """Compute again without keys that are not finite; queries that see one of them get NaN.

    Other results have the bits that they have if all keys are finite: a masked key adds nothing.
    """
    if math.isfinite(out.sum().item()):
        return
    rows, _, keys = mask.shape
    by_row = stored.view(-1, rows, keys, stored.shape[2])
    is_bad, is_seen = ~by_row.isfinite().all(3).all(0), mask == 0  # [rows, keys], [.., width, ..]
    sees_bad = (is_seen & is_bad[:, None]).any(2).flatten()  # [rows * width]
    finite = by_row.masked_fill(is_bad[:, :, None], 0.0).view_as(stored)
    out.copy_(attend(query, finite))
    out.masked_fill_(sees_bad[:, None, None], math.nan)
    _zero_unseen_(layer, slots, is_bad, (whole == 0).any(1))


def _zero_unseen_(
    layer: torch.Tensor,  # [pages, page_size, vectors, dim]
    slots: torch.Tensor,  # [rows, keys]
    is_bad: torch.Tensor,  # [rows, keys]
    is_seen: torch.Tensor,  # [rows, keys] by any query of the row
) -> None:
    """Zero the bad keys that no query sees: no token is there, so one is written before it is read.

    A row reads its own pages and page 0, and its queries see every token that it has.
    """
    unseen = slots[is_bad & ~is_seen]
    unseen = unseen[~torch.isin(unseen, slots[is_seen])]  # page 0 is in several rows
    as_moved(layer).view(-1, *layer.shape[2:]).index_fill_(0, unseen, 0)
