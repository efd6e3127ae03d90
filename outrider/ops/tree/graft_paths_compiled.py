"""`graft` on a CPU, in one compiled call instead of about 130 small operations."""

import struct

import torch

from outrider.ops.compiled.grafted_paths import graft_text_paths
from outrider.ops.compiled.thread_team import run_alone
from outrider.ops.graph_break import graph_break
from outrider.ops.tree.candidates import Candidates
from outrider.ops.tree.graft_paths import DOUBT, LATER_DOUBT, SAMPLED, MergedCandidates
from outrider.ops.tree.text_paths import FoundPaths

_FUNCTION = int(graft_text_paths.address)
_CONSTANTS = tuple(
    int.from_bytes(struct.pack("<f", value), "little") for value in (DOUBT, LATER_DOUBT, SAMPLED)
)


def graft_compiled(
    model: Candidates, found: FoundPaths, budgets: torch.Tensor, is_sampled: torch.Tensor
) -> MergedCandidates:
    rows, num, steps = found.paths.shape
    width = model.scores.shape[1] + num * steps
    integers = model.tokens.new_empty(3, rows, width)
    scores, (tokens, parents, sources) = model.scores.new_empty(rows, width), integers.unbind(0)
    merged = MergedCandidates(
        candidates=Candidates(scores=scores, tokens=tokens, parents=parents), sources=sources
    )
    graph_break(_graft, model, found, budgets[0], is_sampled, merged)
    return merged


def _graft(
    model: Candidates,
    found: FoundPaths,
    most_steps: torch.Tensor,  # [rows]
    is_sampled: torch.Tensor,  # [rows]
    merged: MergedCandidates,  # written
) -> None:
    own, candidates = (model.scores, model.tokens, model.parents), merged.candidates
    rows, num, steps = found.paths.shape
    sizes = rows, model.scores.shape[1], num, steps
    paths, weights = found.paths.contiguous(), found.weights.contiguous()
    strides = (tensor.stride(0) for tensor in (*own, paths, weights))
    found_too = paths, weights, found.longest.long(), most_steps.contiguous(), is_sampled
    written = candidates.scores, candidates.tokens, candidates.parents, merged.sources
    addresses = (each.data_ptr() for each in (*own, *found_too, *written))
    run_alone(_FUNCTION, (*sizes, *strides, *_CONSTANTS, *addresses))
