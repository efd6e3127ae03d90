"""Attention over pages in place, on a CPU (`attend_keys`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.kv_codes import code_values, is_narrow
from outrider.ops.attention.ordered_attention import SeenKeys
from outrider.ops.compiled.attend_keys import attend_rows, key_scratch
from outrider.ops.compiled.thread_team import run_team
from outrider.ops.graph_break import graph_break

_FUNCTION = int(attend_rows.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryGroup:
    """Neighbouring query tokens, each at a place of the rectangle [rows, width] of its keys."""

    first: int  # query token
    num: int
    places: torch.Tensor  # [num] int64; [0] if the tokens lie as the places do
    seen: SeenKeys

    @property
    def fields(self) -> tuple[int, ...]:
        """The integers that compiled functions read."""
        places = self.places.data_ptr() if len(self.places) else 0
        slots, mask = self.seen.slots, self.seen.mask
        rows, width, keys = mask.shape
        addresses = places, slots.data_ptr(), mask.data_ptr()
        return self.first, self.num, *addresses, width, keys, rows * width


def attend_in_place(
    query: torch.Tensor,  # [num_query, heads, head_dim] float32
    groups: Sequence[QueryGroup],  # of all query tokens
    *,
    layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim] float32, or codes
    rule: AttentionRule,
) -> torch.Tensor:  # [num_query, heads, head_dim]
    """Attention of every query token over the keys that it sees."""
    out = torch.empty(query.shape, dtype=query.dtype)
    factors = torch.tensor([rule.scale, rule.soft_cap], dtype=torch.float32)
    graph_break(_attend, query, groups, layer, rule, factors, out)
    return out


def key_scratch_bytes(groups: Sequence[QueryGroup]) -> int:
    """The size of the memory that attention needs besides its operands."""
    keys, *others = {group.seen.mask.shape[2] for group in groups}
    assert not others, "a thread may read one group while another one reads the next"
    return torch.get_num_threads() * key_scratch(keys)


def _attend(
    query: torch.Tensor,
    groups: Sequence[QueryGroup],
    layer: torch.Tensor,
    rule: AttentionRule,
    factors: torch.Tensor,  # [2] float32 scale, soft cap
    out: torch.Tensor,
) -> None:
    scratch = torch.empty(key_scratch_bytes(groups), dtype=torch.uint8)
    assert query.stride(2) == 1
    assert query.stride(1) == query.shape[2]
    run_team(
        _FUNCTION,
        (
            len(groups),
            query.data_ptr(),
            query.stride(0),
            query.shape[1],
            layer.shape[2],
            layer.shape[3],
            layer.data_ptr(),
            factors.data_ptr(),
            rule.signed_window,
            out.data_ptr(),
            scratch.data_ptr(),
            code_values(layer.dtype).data_ptr() if is_narrow(layer) else 0,
            0 if rule.sinks is None else rule.sinks.data_ptr(),
            *(field for group in groups for field in group.fields),
        ),
    )
