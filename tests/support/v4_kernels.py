"""What DeepSeek-V4's kernels must do on any device: interpreted on a CPU, compiled on a GPU."""

from dataclasses import dataclass, fields, is_dataclass, replace

import torch

from outrider.ops.linear.hyper_connections import (
    MixWeights,
    collapse_streams_reference,
    read_streams_reference,
    write_streams_reference,
)
from outrider.ops.linear.hyper_connections_triton import read_streams_triton, write_streams_triton
from outrider.ops.norm_rope.partial_rope import (
    TailRotation,
    VectorNorm,
    norm_and_rotate_reference,
    rotate_tail_reference,
)
from outrider.ops.norm_rope.partial_rope_triton import (
    norm_and_rotate_triton,
    rotate_tail_triton,
)
from outrider.ops.norm_rope.rms_norm import RmsNorm
from outrider.ops.sparse.compress import Compressor, store_entries_reference
from outrider.ops.sparse.compress_triton import store_entries_triton
from outrider.ops.sparse.compressed_index import BlockPlan, CompressedIndex
from outrider.ops.sparse.indexer import index_scores
from outrider.ops.sparse.indexer_triton import select_entries_triton
from outrider.ops.sparse.listed_entries import ListedEntries
from outrider.ops.sparse.ring_plan import QueryWindows
from outrider.ops.sparse.ring_tokens import RingPlan, RingTokens
from outrider.ops.sparse.sparse_attention import sparse_attention_reference
from outrider.ops.sparse.sparse_attention_triton import sparse_attention_triton
from support.layer_kernels import EPS, UNWRITTEN, Case, assert_close, poisoned_outputs, random

CPU = "cpu"


def moved(record, device):
    """The record with all its tensors on a device."""
    if isinstance(record, torch.Tensor):
        return record.to(device)
    if not is_dataclass(record):
        return record
    changed = {each.name: moved(getattr(record, each.name), device) for each in fields(record)}
    return replace(record, **changed)


def rotation_of(num: int, pairs: int, seed: int) -> TailRotation:
    angles = random(num, pairs, like=(CPU, torch.float32), seed=seed)
    return TailRotation(angles.cos(), angles.sin())


def integers(low: int, high: int, *shape: int, seed: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def check_partial_rope(num: int, heads: int, width: int, pairs: int, like: Case) -> None:
    """Vectors whose rows lie apart, with every kind of norm before."""
    wide = random(num, heads * width + 5, like=like, seed=1)
    x = wide[:, : heads * width].view(num, heads, width)
    rotation = rotation_of(num, pairs, seed=2)
    on_device = TailRotation(rotation.cos.to(like[0]), rotation.sin.to(like[0]))
    wide_x = x.float().cpu()
    with poisoned_outputs():
        for back in (False, True):
            got = rotate_tail_triton(x, on_device, back=back)
            assert got.dtype == x.dtype
            right = rotate_tail_reference(wide_x, rotation, back=back)
            assert_close(got.cpu(), right, roundings=1, cancelled=4.0)
        weight = random(width, like=(CPU, torch.float32), seed=3)
        for norm in (VectorNorm(weight, EPS), VectorNorm(weight[:0], EPS)):
            got = norm_and_rotate_triton(x, VectorNorm(norm.weight.to(like[0]), EPS), on_device)
            right = norm_and_rotate_reference(wide_x, norm, rotation)
            assert_close(got.cpu(), right, roundings=1, cancelled=4.0)


@dataclass(frozen=True)
class BlockCase:
    """Blocks that may end: their window, series and width."""

    window: int
    series: int
    width: int
    pairs: int
    windows: int = 9


def check_entries(case: BlockCase, like: Case) -> None:
    """Windows over ring and step, some of them absent in part; blocks without a target."""
    slots, fresh, entries, windows = 23, 11, 20, case.windows
    channels = 2 * case.series * case.width
    tokens = RingTokens(
        random(slots, channels + 3, like=like, seed=1)[:, :channels],
        random(fresh, channels + 5, like=like, seed=2)[:, 2 : 2 + channels],
    )
    sources = integers(0, slots + fresh, windows, case.window, seed=3)
    sources[0, : case.window // 2] = -1
    targets = torch.randperm(entries - 1, generator=torch.Generator().manual_seed(4))[:windows] + 1
    targets[1::3] = 0
    bias = random(case.window, case.width, like=(CPU, torch.float32), seed=5)
    weight = random(case.width, like=(CPU, torch.float32), seed=6)
    rotation = rotation_of(windows, case.pairs, seed=7)
    pool = torch.full((entries, case.width), UNWRITTEN).to(*like)
    block = BlockPlan(
        ring=RingPlan(sources=sources, writes=sources[0]),
        starts=targets,
        targets=targets,
        counts=targets,
    )
    compressor, device = Compressor(bias, VectorNorm(weight, EPS)), like[0]
    store_entries_triton(
        tokens, moved(block, device), moved(compressor, device), moved(rotation, device), pool
    )
    right = torch.full((entries, case.width), UNWRITTEN)
    reference = RingTokens(tokens.ring.float().cpu(), tokens.fresh.float().cpu())
    store_entries_reference(reference, block, compressor, rotation, right)
    right[0] = UNWRITTEN  # on page 0, which the kernel does not write
    assert_close(pool.cpu(), right, roundings=1, cancelled=8.0)


def listed_of(
    like: Case, *, num: int, per_page: int, columns: int, width: int, counts: list[int]
) -> ListedEntries:
    """Lists of whole pages, in any order, over a pool of twice as many."""
    lists, pages = 3, 2 * columns * 3
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(8))[: lists * columns]
    return ListedEntries(
        pool=random(pages * per_page, width, like=like, seed=9),
        table=table.view(lists, columns),
        per_page=per_page,
        lists=integers(0, lists, num, seed=10),
        counts=torch.tensor(counts),
    )


@dataclass(frozen=True)
class ChoiceCase:
    """Sizes of an index, and how many entries each query token sees."""

    heads: int
    width: int
    per_page: int
    columns: int
    top_k: int
    counts: tuple[int, ...]


def check_choice(case: ChoiceCase, like: Case) -> None:
    """The kernel chooses the best of the scores it computes itself; these are the reference's."""
    num, device = len(case.counts), like[0]
    query = random(num, case.heads, case.width, like=like, seed=1)
    weights = random(num, case.heads, like=(CPU, torch.float32), seed=2)
    keys = listed_of(
        like,
        num=num,
        per_page=case.per_page,
        columns=case.columns,
        width=case.width,
        counts=list(case.counts),
    )
    keys.pool[case.per_page : 2 * case.per_page] = keys.pool[:1]  # equal scores
    with poisoned_outputs():
        slots = select_entries_triton(
            query, weights.to(device), moved(keys, device), 0.5, case.top_k
        ).cpu()
    reference = replace(keys, pool=keys.pool.float().cpu())
    scores = index_scores(query.float().cpu(), weights, reference, 0.5)
    for token, count in enumerate(case.counts):
        count = min(count, case.per_page * case.columns)  # a list has no more
        kept = min(count, case.top_k)
        chosen, own = slots[token, :kept], reference.slots[token]
        assert not slots[token, kept:].any()
        places = [own.tolist().index(slot) for slot in chosen.tolist()]
        assert places == sorted(set(places))
        assert all(place < count for place in places)
        if count > case.top_k:
            others = scores[token, :count].clone()
            others[places] = float("-inf")
            # Up to the last digits of a sum, no entry that was left out is better.
            assert others.max() <= scores[token, places].min() + 1e-4 * case.heads


@dataclass(frozen=True)
class SparseCase:
    """Sizes of a step: chains first, then tokens of chunks."""

    heads: int
    width: int
    window: int
    per_page: int
    columns: int
    counts: tuple[int, ...]
    chains: int  # query tokens


@dataclass(frozen=True)
class SparseStep:
    """The operands of sparse attention."""

    query: torch.Tensor
    window: RingTokens
    sources: torch.Tensor
    entries: ListedEntries
    sinks: torch.Tensor

    @property
    def scale(self) -> float:
        return self.query.shape[2] ** -0.5


def sparse_step(case: SparseCase, like: Case) -> SparseStep:
    num, slots = len(case.counts), 13
    sources = integers(0, slots + num, num, case.window, seed=4)
    for token in range(num):
        sources[token, : token % case.window] = -1
    entries = listed_of(
        like,
        num=num,
        per_page=case.per_page,
        columns=case.columns,
        width=case.width,
        counts=list(case.counts),
    )
    window = RingTokens(
        random(slots, case.width, like=like, seed=2),
        random(num, case.width + 4, like=like, seed=3)[:, : case.width],
    )
    query = random(num, case.heads, case.width, like=like, seed=1)
    sinks = random(case.heads, like=(CPU, torch.float32), seed=5)
    return SparseStep(query=query, window=window, sources=sources, entries=entries, sinks=sinks)


def attend_sparsely(step: SparseStep, case: SparseCase, device: str) -> torch.Tensor:
    with poisoned_outputs():
        return sparse_attention_triton(
            step.query,
            step.window,
            moved(index_of(step.sources, case), device),
            moved(step.entries, device),
            step.sinks.to(device),
            step.scale,
        )


def check_attention(case: SparseCase, like: Case, *, roundings: int) -> None:
    step, window = sparse_step(case, like), sparse_step(case, like).window
    got = attend_sparsely(step, case, like[0])
    right = sparse_attention_reference(
        step.query.float().cpu(),
        RingTokens(window.ring.float().cpu(), window.fresh.float().cpu()),
        index_of(step.sources, case),
        replace(step.entries, pool=step.entries.pool.float().cpu()),
        step.sinks,
        step.scale,
    )
    assert got.dtype == step.query.dtype
    assert_close(got.cpu(), right, roundings=roundings, cancelled=2.0 * roundings)


def check_chunk_bits(case: SparseCase, like: Case) -> None:
    """Tokens have the same bits in chains and in chunks."""
    step = sparse_step(case, like)
    chains = attend_sparsely(step, replace(case, chains=len(case.counts)), like[0])
    assert torch.equal(chains, attend_sparsely(step, replace(case, chains=0), like[0]))


def index_of(sources: torch.Tensor, case: SparseCase) -> CompressedIndex:
    unused = sources[:, 0]
    ring = RingPlan(sources=sources, writes=unused)
    return CompressedIndex(
        num_decode_query=case.chains,
        pages=sources,
        window=QueryWindows(query_index=unused, owners=unused, ring=ring),
        blocks=(),
    )


def check_streams(num: int, streams: int, hidden: int, like: Case, *, roundings: int) -> None:
    """Reading and writing by the kernels, beside the references; and the last reading."""
    device, wide = like[0], (CPU, torch.float32)
    # A mix is off by the roundings of its long sum in float32, and streams it mixes may cancel.
    cancelled = 4.0 * (roundings if like[1] == torch.float32 else 1)
    x = random(num, streams, hidden, like=like, seed=1)
    y = random(num, hidden, like=like, seed=2)
    norm = RmsNorm(random(hidden, like=like, seed=3).float().cpu(), EPS)
    for is_last in (False, True):
        mixes = streams if is_last else (2 + streams) * streams
        weights = MixWeights(
            projection=random(mixes, streams * hidden, like=wide, seed=4) * hidden**-0.5,
            base=random(mixes, like=wide, seed=5),
            scale=random(mixes, like=wide, seed=6),
            norm_eps=1e-6,
        )
        on_device = RmsNorm(norm.weight.to(device), EPS)
        with poisoned_outputs():
            got = read_streams_triton(
                x, moved(weights, device), on_device, eps=1e-6, rounds=0 if is_last else 4
            )
        wide_x = x.float().cpu()
        if is_last:
            right = collapse_streams_reference(wide_x, weights, norm, eps=1e-6)
            assert_close(got.x.cpu(), right, roundings=roundings, cancelled=cancelled)
            continue
        mixed = read_streams_reference(wide_x, weights, norm, eps=1e-6, rounds=4)
        assert_close(got.x.cpu(), mixed.x, roundings=roundings, cancelled=cancelled)
        torch.testing.assert_close(got.post.cpu(), mixed.post, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.comb.cpu(), mixed.comb, rtol=1e-4, atol=1e-4)
        written = write_streams_triton(y, x, got)
        right = write_streams_reference(y.float().cpu(), wide_x, mixed)
        torch.testing.assert_close(
            written.float().cpu(), right, rtol=1e-3 * roundings, atol=3e-4 * roundings
        )
