"""Where the slots of a draft block read: the last tokens before the block, and all its slots.

All slots of a row read the same vectors. A sliding window, which ends with each query token, is in
`ring_plan.py`.
"""

import torch

from outrider.ops.sparse.ring_plan import QueryWindows, fill_owners
from outrider.ops.sparse.ring_tokens import ABSENT
from outrider.ops.sparse.step_spans import StepSpans


def fill_block_windows(
    plan: QueryWindows,  # written; sources are [rows * slots, window + slots]
    step: StepSpans,  # its nodes are slots
    *,
    window: int,  # tokens before the block
    length: int,  # of a ring buffer
    table_rows: int,
) -> None:
    """Write the row of each slot, where it reads, and where it is saved: with padding, in row 0."""
    rows, slots, lengths = fill_owners(plan, step), step.nodes, step.decode.lengths
    back = torch.arange(window, 0, -1, device=lengths.device)
    position = lengths[:, None] - back  # [rows, window]
    slot = (step.decode.rows * length)[:, None] + position % length
    context = slot.masked_fill_(position < 0, ABSENT)
    own = plan.query_index.view(-1, slots) + table_rows * length  # [rows, slots]
    sources = torch.cat([context, own], dim=1)
    plan.ring.sources.view(-1, slots, window + slots).copy_(sources[:, None])
    torch.remainder(rows.positions, length, out=plan.ring.writes)
