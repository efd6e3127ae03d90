"""Attention over pools that hold NaN or infinity where a query token does not look."""

import math
from dataclasses import replace

import torch

from outrider.ops.tree.plan_rows import page_slots
from outrider.step.attention_backend import AttentionBackend
from support.attention_cases import Case, run


def _texts(case: Case) -> list[tuple[int, int]]:
    """Table row and length of every text of the step, the step's own tokens included."""
    decode, chunk = case.scope.decode, case.scope.chunk
    lengths = decode.lengths + case.shape.nodes
    ends = chunk.starts + chunk.counts
    return [
        *zip(decode.rows.tolist(), lengths.tolist(), strict=True),
        *zip(chunk.rows.tolist(), ends.tolist(), strict=True),
    ]


def slots_of(case: Case, row: int, positions: torch.Tensor) -> torch.Tensor:
    positions = positions.to(case.layer.device)
    rows = torch.full_like(positions, row)
    return page_slots(case.scope.page_table, rows, positions, case.model.page_size)


def poisoned_layer(case: Case, value: float) -> torch.Tensor:
    """The layer with this value in all slots that no text of the step has."""
    layer = torch.full_like(case.layer, value)
    vectors, clean = layer.flatten(0, 1), case.layer.flatten(0, 1)
    for row, length in _texts(case):
        own = slots_of(case, row, torch.arange(length))
        vectors[own] = clean[own]
    return layer


def assert_blind_to_unused(backend: AttentionBackend, case: Case, value: float) -> None:
    """Slots that no text of the step has change no bit, whatever they hold."""
    right = run(backend, case)
    assert right.isfinite().all()
    assert torch.equal(run(backend, replace(case, layer=poisoned_layer(case, value))), right)


def assert_only_descendants_see(backend: AttentionBackend, case: Case, node: int) -> None:
    """A node with keys of NaN, as a pool stores them, reaches the nodes below it and no other."""
    right, layer = run(backend, case), case.layer.clone()
    latent, half = case.model.latent, case.model.vectors // 2
    for row, length in zip(
        case.scope.decode.rows.tolist(), case.scope.decode.lengths.tolist(), strict=True
    ):
        stored = layer.flatten(0, 1)[slots_of(case, row, torch.tensor([length + node]))[0]]
        if latent:
            stored[:, :latent], stored[:, latent:] = 0.0, math.nan
        else:
            stored[:half], stored[half:] = math.nan, 0.0
    got = run(backend, replace(case, layer=layer))
    sees = (case.scope.ancestors >> node & 1).bool().flatten()
    num_decode_query = case.shape.num_decode_query
    assert sees.any()
    assert got[:num_decode_query][sees].isnan().all()
    assert torch.equal(got[:num_decode_query][~sees], right[:num_decode_query][~sees])
    assert torch.equal(got[num_decode_query:], right[num_decode_query:])
