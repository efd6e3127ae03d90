"""How often drafts are accepted, by what the drafter thinks of them: measured on the device.

A drafter's probabilities are not the chances of its drafts: it is too sure of itself, more so with
depth. So every draft that was verified, and whose parent was accepted, is counted.
"""

from dataclasses import dataclass, replace

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.tree.candidates import Candidates, SelectedTree

_COMPILED = "outrider.ops.compiled.draft_chances"
# The last of the depths stands for all together; deeper drafts count as those of the one before.
KINDS, DEPTHS, BINS = 6, 8, 8
NUM_ENTRIES = KINDS * DEPTHS * BINS
PRIOR_WEIGHT = 8.0  # drafts that an estimate from elsewhere counts for
DECAY = 0.995  # of all counts in a step: text changes, and what is not tried is forgotten
SLOPE = 0.01  # chance of a draft that its drafter is sure of, against one with equal counts
BEST_LOG = -1e-3  # a draft is never certain, so that a child scores below its parent
LEAST_LOG = -30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceTable:
    """Decayed counts. An entry is (kind of draft, depth, bin of the drafter's probability)."""

    tried: torch.Tensor  # [NUM_ENTRIES] float32 drafts that were verified after an accepted parent
    accepted: torch.Tensor  # [NUM_ENTRIES] float32


def make_acceptance_table(device: torch.device) -> AcceptanceTable:
    tried, accepted = torch.zeros(2, NUM_ENTRIES, device=device).unbind(0)
    return AcceptanceTable(tried=tried, accepted=accepted)


def counts_for_little(device: torch.device) -> bool:
    """Whether a step that does not need chances may count all the same.

    On a CPU that is two compiled calls. On a GPU it would be two more kernels in
    every step that drafts, for a table that fills within the first steps that share drafts.
    """
    return device.type == "cpu"


def calibrate_(
    candidates: Candidates,  # scores are written: the logarithm of the chance of acceptance
    kinds: torch.Tensor,  # [rows, width] int64 below KINDS: drafts that are counted together
    table: AcceptanceTable,
    *,
    steps: int,  # of the deepest candidate
) -> torch.Tensor:  # [rows, width] int64 entry of each candidate
    """Replace scores by measured chances. A child still scores strictly below its parent."""
    if candidates.scores.is_cuda:
        from outrider.ops.tree.acceptance_table_triton import calibrate_triton_

        return calibrate_triton_(candidates, kinds, table, steps=steps)
    if is_compiled(candidates.scores, _COMPILED):
        from outrider.ops.tree.acceptance_table_compiled import calibrate_compiled_

        return calibrate_compiled_(candidates, kinds, table, steps=steps)
    return calibrate_reference_(candidates, kinds, table, steps=steps)


def calibrate_reference_(
    candidates: Candidates, kinds: torch.Tensor, table: AcceptanceTable, *, steps: int
) -> torch.Tensor:  # [rows, width]
    """The same in plain torch."""
    scores, above = candidates.scores, candidates.parents.clamp_min(0)
    is_first = candidates.parents < 0
    value = scores - scores.gather(1, above).masked_fill(is_first, 0.0)
    value = value.nan_to_num(LEAST_LOG, neginf=LEAST_LOG).clamp(LEAST_LOG, 0.0)
    bins = (value.exp() * BINS).long().clamp_max(BINS - 1)
    depths = torch.zeros_like(bins)
    for _ in range(steps - 1):  # each pass reaches one level deeper
        depths = (depths.gather(1, above) + 1).masked_fill(is_first, 0)
    spans = kinds * DEPTHS + depths.clamp_max(DEPTHS - 2)
    own = _chances(value.exp(), _rates(table)[spans]).log().clamp(LEAST_LOG, BEST_LOG)
    path = own
    for _ in range(steps - 1):
        path = own + path.gather(1, above).masked_fill(is_first, 0.0)
    scores.copy_(path.where(scores > float("-inf"), scores))
    return spans * BINS + bins


def _rates(table: AcceptanceTable) -> torch.Tensor:  # [KINDS * DEPTHS, BINS]
    """The share of drafts that were accepted, by bin.

    What is not counted yet is estimated from more: a bin of a depth from that bin of all depths,
    and this from how much drafts of its kind are accepted less often than their drafter thinks. A
    rate is not below that of the bin before: few counts would then put a draft behind one that the
    same drafter thinks less of.
    """
    tried, accepted = (x.view(KINDS, DEPTHS, BINS) for x in (table.tried, table.accepted))
    thought = (torch.arange(BINS, device=tried.device) + 0.5) / BINS
    num_thought = (tried[:, -1] * thought).sum(1) + PRIOR_WEIGHT
    scale = (accepted[:, -1].sum(1) + PRIOR_WEIGHT) / num_thought  # [KINDS]
    rate = (thought * scale[:, None]).clamp_max(1.0)[:, None]  # [KINDS, 1, BINS]
    for part in (slice(DEPTHS - 1, DEPTHS), slice(None)):  # all depths together, then each
        rate = (accepted[:, part] + PRIOR_WEIGHT * rate) / (tried[:, part] + PRIOR_WEIGHT)
    return rate.cummax(2).values.flatten(0, 1)


def _chances(
    thought: torch.Tensor,  # [rows, width] probabilities of the drafter
    rates: torch.Tensor,  # [rows, width, BINS]
) -> torch.Tensor:  # [rows, width]
    """Rates belong to the middles of bins; between two middles the chance is interpolated."""
    place = thought * BINS - 0.5
    below = place.floor().clamp(0, BINS - 2)
    index = below.long()[..., None]
    low, high = (rates.gather(2, each).squeeze(2) for each in (index, index + 1))
    between = low + (high - low) * (place - below).clamp(0.0, 1.0)
    return between * (2 * place + 1).clamp_max(1.0) + SLOPE * thought


def entries_of(
    candidates: Candidates, kinds: torch.Tensor, table: AcceptanceTable, *, steps: int
) -> torch.Tensor:  # [rows, width]
    """The entry of each candidate, whose score stays as it is."""
    copy = replace(candidates, scores=candidates.scores.clone())
    return calibrate_(copy, kinds, table, steps=steps)


def _of_all_depths(entries: torch.Tensor) -> torch.Tensor:
    """The entries of the same kinds and bins that count all depths together."""
    kind = entries // (DEPTHS * BINS)
    return (kind * DEPTHS + DEPTHS - 1) * BINS + entries % BINS


def count_accepted_(
    table: AcceptanceTable,  # written
    entries: torch.Tensor,  # [rows, width] int64 of each candidate
    selected: SelectedTree,
    path: torch.Tensor,  # [rows, most_emitted] int64 accepted nodes, the last one repeated
) -> None:
    """Count the drafts of a step. One whose parent was rejected says nothing."""
    if entries.is_cuda:
        from outrider.ops.tree.acceptance_table_triton import count_accepted_triton_

        count_accepted_triton_(table, entries, selected, path)
        return
    if is_compiled(entries, _COMPILED):
        from outrider.ops.tree.acceptance_table_compiled import count_accepted_compiled_

        count_accepted_compiled_(table, entries, selected, path)
        return
    count_accepted_reference_(table, entries, selected, path)


def count_accepted_reference_(
    table: AcceptanceTable, entries: torch.Tensor, selected: SelectedTree, path: torch.Tensor
) -> None:
    """The same in plain torch."""
    numbers, parents = selected.numbers, selected.tree.parents
    node = torch.arange(numbers.shape[1], device=numbers.device)
    is_accepted = (path[:, :, None] == node).any(1)  # [rows, nodes]
    is_tried = is_accepted.gather(1, parents.clamp_min(0)) & (numbers >= 0)
    entries = entries.gather(1, numbers.clamp_min(0))
    for counts, is_counted in (
        (table.tried, is_tried),
        (table.accepted, is_tried & is_accepted),
    ):
        new = torch.zeros(NUM_ENTRIES + 1, device=entries.device)
        ones = torch.ones(entries.numel(), device=entries.device)
        for part in (entries, _of_all_depths(entries)):
            new.index_add_(0, part.where(is_counted, NUM_ENTRIES).flatten(), ones)
        counts.mul_(DECAY).add_(new[:-1])
