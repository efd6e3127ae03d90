"""Times the attention kernels inside CUDA graphs over distinct KV, and sweeps their tiles.

Run on a GPU: python -m benchmarks.kernels.time_attention [--kv-heads 8 --group 4 --head-dim 128]
[--chains]
"""

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace

import torch

from benchmarks.kernels.graph_clock import graph_us
from outrider.ops.attention import decode_triton as attention
from outrider.ops.attention import prefill_triton as prefill
from outrider.ops.attention import splits_triton as splits
from outrider.ops.attention import tree_paths_triton as paths
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.decode_tiles_triton import DecodeTiles, decode_tiles

COPY_RATE = 4.27e12  # bytes/s of a device-to-device copy on an H200
MATRIX_RATE = 782e12  # flop/s of a large bf16 product on it
KV_BYTES = 16e9  # of all layers of a graph together, at most
PAGE_SIZE = 16
DEVICE = torch.device("cuda")


@dataclass(frozen=True, kw_only=True)
class AttentionModel:
    kv_heads: int
    group: int
    head_dim: int

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def token_bytes(self) -> int:
        return 2 * self.kv_heads * self.head_dim * torch.bfloat16.itemsize


@dataclass(frozen=True, kw_only=True)
class DecodeCase:
    """Rows of equal length; `spare` positions that the shape has and no row uses."""

    rows: int
    context: int
    nodes: int = 1
    is_tree: bool = False
    spare: int = 0

    def __str__(self) -> str:
        kind = "tree" if self.is_tree else "chain" if self.nodes > 1 else "decode"
        spare = f" in a shape of {self.context + self.spare}" if self.spare else ""
        return f"{kind:6} nodes {self.nodes:2} rows {self.rows:3} context {self.context:5}{spare}"


@dataclass(frozen=True, kw_only=True)
class PromptCase:
    start: int
    count: int

    def __str__(self) -> str:
        return f"prefill {self.count} tokens after {self.start}"


def seconds_per_layer(run: Callable[[torch.Tensor], None], layers: list[torch.Tensor]) -> float:
    """Seconds of one layer: a graph of all of them, replayed warm, median."""

    def run_all() -> None:
        for layer in layers:
            run(layer)

    return graph_us(run_all, repeat=6) / 1e6 / len(layers)


def make_layers(model: AttentionModel, tokens: int) -> list[torch.Tensor]:
    """Enough KV that the L2 cache does not help: 20 layers if they fit."""
    pages = tokens // PAGE_SIZE + 1
    count = max(2, min(20, int(KV_BYTES / (tokens * model.token_bytes))))
    shape = (pages, PAGE_SIZE, 2 * model.kv_heads, model.head_dim)
    return [torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_() for _ in range(count)]


def make_queries(model: AttentionModel, tokens: int) -> torch.Tensor:
    wide = torch.randn(tokens, model.heads + 2 * model.kv_heads, model.head_dim, device=DEVICE)
    return wide.bfloat16()[:, : model.heads]


def make_table(rows: int, pages: int) -> torch.Tensor:
    """Row 0 is padding; the others own their pages in random order."""
    table = torch.zeros(rows + 1, pages, dtype=torch.int64, device=DEVICE)
    table[1:] = (torch.randperm(rows * pages, device=DEVICE) + 1).view(rows, pages)
    return table


def make_ancestors(case: DecodeCase) -> torch.Tensor:  # [rows, nodes]
    masks: list[int] = []
    for node in range(case.nodes):
        parent = (node - 1) // 2 if case.is_tree else node - 1
        masks.append(1 << node | (masks[parent] if node else 0))
    return torch.tensor(masks, device=DEVICE).expand(case.rows, case.nodes)


def time_decode_rows(
    model: AttentionModel,
    case: DecodeCase,
    layers: list[torch.Tensor],
    tiles: DecodeTiles | None = None,
) -> float:
    pages = (case.context + case.nodes + PAGE_SIZE) // PAGE_SIZE
    table = torch.nn.functional.pad(make_table(case.rows, pages), (0, case.spare // PAGE_SIZE))
    table %= layers[0].shape[0]
    views = {
        "out_pages": torch.empty_like(table[1:], dtype=torch.int32),
        "out_lengths": torch.empty(case.rows, dtype=torch.int32, device=DEVICE),
        "limits": torch.empty(case.rows * case.nodes, dtype=torch.int32, device=DEVICE),
        "tails": torch.empty(case.rows * case.nodes, 64, dtype=torch.int32, device=DEVICE),
    }
    rows = torch.arange(1, case.rows + 1, device=DEVICE)
    lengths = torch.full_like(rows, case.context)
    nothing = views["limits"][:0]
    paths.trace_paths(
        rows, lengths, make_ancestors(case), table, queries=nothing, out_queries=nothing, **views
    )
    query = make_queries(model, case.rows * case.nodes)
    out = torch.empty(query.shape, dtype=query.dtype, device=DEVICE)
    split = tiles.split if tiles else splits.SPLIT
    count = splits.num_splits(table.shape[1] * PAGE_SIZE, split=split)
    width = splits.partial_width(model.heads, model.head_dim)
    partials = torch.empty(count * query.shape[0] * width, device=DEVICE)

    def run(layer: torch.Tensor) -> None:
        attention.attend_decode(
            query,
            layer,
            out,
            pages=views["out_pages"],
            lengths=views["out_lengths"],
            queries=nothing,
            limits=views["limits"],
            tails=views["tails"],
            partials=partials,
            rule=AttentionRule(scale=model.head_dim**-0.5),
            is_tree=case.is_tree,
            tiles=tiles,
        )

    return seconds_per_layer(run, layers)


def time_prompt(
    model: AttentionModel, case: PromptCase, layers: list[torch.Tensor], tiles: prefill.PrefillTiles
) -> float:
    table = make_table(1, (case.start + case.count) // PAGE_SIZE)
    pages = torch.empty_like(table[1:], dtype=torch.int32)
    bounds = torch.empty(3, 1, dtype=torch.int32, device=DEVICE)
    row, start, count = (torch.full((1,), n, device=DEVICE) for n in (1, case.start, case.count))
    prefill.place_chunks(row, start, count, table, out_pages=pages, bounds=bounds)
    query = make_queries(model, case.count)
    out = torch.empty(query.shape, dtype=query.dtype, device=DEVICE)

    def run(layer: torch.Tensor) -> None:
        prefill.attend_chunks(
            query,
            layer,
            out,
            pages=pages,
            bounds=bounds,
            rule=AttentionRule(scale=model.head_dim**-0.5),
            tiles=tiles,
        )

    return seconds_per_layer(run, layers)


def print_decode_rows(
    model: AttentionModel, case: DecodeCase, seconds: float, note: str = ""
) -> None:
    rate = case.rows * case.context * model.token_bytes / seconds
    share = rate / COPY_RATE
    print(f"{case!s:60} {seconds * 1e6:9.2f} us {rate / 1e9:7.0f} GB/s {share:6.1%} {note}")


def print_prompt(model: AttentionModel, case: PromptCase, seconds: float, note: str = "") -> None:
    pairs = case.count * (case.start + (case.count + 1) / 2)
    rate = 4 * pairs * model.heads * model.head_dim / seconds
    share = rate / MATRIX_RATE
    print(f"{case!s:60} {seconds * 1e6:9.2f} us {rate / 1e12:7.0f} TFLOP/s {share:6.1%} {note}")


def measure(model: AttentionModel) -> None:
    """The table of shapes, with the tiles as they are in the package."""
    print("decode rows", decode_tiles(model.head_dim, torch.bfloat16))
    for context in (128, 1024, 8192):
        for rows in (1, 8, 32, 64):
            layers = make_layers(model, rows * (context + 2 * PAGE_SIZE))
            plain = DecodeCase(rows=rows, context=context)
            cases = [plain, replace(plain, nodes=6), replace(plain, nodes=16, is_tree=True)]
            if context == 1024:
                cases.append(replace(plain, spare=7168))
            for case in cases:
                print_decode_rows(model, case, time_decode_rows(model, case, layers))
    wide = prefill.prefill_tiles(model.head_dim, torch.bfloat16)
    print("prefill", wide)
    for prompt in (PromptCase(start=0, count=8192), PromptCase(start=6144, count=2048)):
        layers = make_layers(model, 8192)
        print_prompt(model, prompt, time_prompt(model, prompt, layers, wide))


DECODE_SWEEP = [
    DecodeTiles(rows=16, keys=keys, split=split, num_warps=num_warps, num_stages=stages)
    for keys, split, num_warps, stages in [
        (64, 256, 4, 3),
        (64, 256, 4, 4),
        (64, 256, 4, 2),
        (64, 128, 4, 3),
        (64, 512, 4, 3),
        (64, 256, 2, 3),
        (64, 256, 8, 3),
        (32, 256, 4, 4),
        (32, 256, 2, 4),
        (128, 256, 4, 2),
        (128, 256, 8, 3),
    ]
]
TREE_SWEEP = [
    DecodeTiles(rows=rows, keys=keys, num_warps=num_warps, num_stages=stages)
    for rows, keys, num_warps, stages in [
        (16, 64, 4, 3),
        (32, 64, 4, 3),
        (32, 64, 4, 2),
        (32, 32, 4, 4),
        (16, 32, 4, 4),
        (32, 64, 8, 3),
    ]
]
CHAIN_SWEEP = [
    DecodeTiles(rows=rows, num_stages=stages)
    for rows, stages in [(32, 3), (32, 4), (16, 3), (16, 4)]
]
PREFILL_SWEEP = [
    prefill.PrefillTiles(rows=rows, keys=keys, num_warps=num_warps, num_stages=stages)
    for rows, keys, num_warps, stages in [
        (128, 64, 8, 3),
        (128, 64, 8, 2),
        (128, 128, 8, 2),
        (128, 64, 4, 3),
        (128, 64, 8, 4),
        (64, 64, 4, 3),
        (64, 64, 4, 2),
    ]
]


def sweep(model: AttentionModel) -> None:
    """The same few shapes under other tiles: (rows, keys, split, warps, stages)."""
    large, small = DecodeCase(rows=64, context=1024), DecodeCase(rows=1, context=1024)
    trees = [replace(case, nodes=16, is_tree=True) for case in (large, small)]
    for case in (large, small, *trees):
        layers = make_layers(model, case.rows * (case.context + 2 * PAGE_SIZE))
        for tiles in TREE_SWEEP if case.is_tree else DECODE_SWEEP:
            seconds = time_decode_rows(model, case, layers, tiles)
            print_decode_rows(model, case, seconds, str(astuple(tiles)))
    prompt = PromptCase(start=0, count=8192)
    layers = make_layers(model, 8192)
    for wide in PREFILL_SWEEP:
        print_prompt(model, prompt, time_prompt(model, prompt, layers, wide), str(astuple(wide)))


def sweep_chains(model: AttentionModel) -> None:
    """Chains of six nodes under tiles that have the same bits."""
    for rows, context in itertools.product((32, 64), (272, 1000)):
        case = DecodeCase(rows=rows, context=context, nodes=6)
        layers = make_layers(model, rows * (context + 2 * PAGE_SIZE))
        for tiles in CHAIN_SWEEP:
            seconds = time_decode_rows(model, case, layers, tiles)
            print_decode_rows(model, case, seconds, str(astuple(tiles)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--no-sweep", action="store_true")
    parser.add_argument("--chains", action="store_true", help="only the tiles of chains")
    args = parser.parse_args()
    model = AttentionModel(kv_heads=args.kv_heads, group=args.group, head_dim=args.head_dim)
    begin = time.perf_counter()
    runs = [measure] if args.no_sweep else [measure, sweep]
    for run in [sweep_chains] if args.chains else runs:
        run(model)
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
