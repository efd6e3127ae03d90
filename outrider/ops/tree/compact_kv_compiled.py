"""`compact_kv` on a CPU, in one compiled call instead of about 5 operations for every layer."""

import torch

from outrider.ops.compiled.moved_kv import NUM_OUTSIDE, move_accepted_kv
from outrider.ops.compiled.thread_team import run_alone
from outrider.ops.graph_break import graph_break
from outrider.ops.tree.draft_tree import VerifyResult
from outrider.ops.tree.plan_rows import DecodeRows

_FUNCTION = int(move_accepted_kv.address)
_WORD = 8  # bytes


def is_in_words(storage: torch.Tensor) -> bool:  # [layers, pages, page_size, vectors, width]
    """Whether the vectors of a token take whole words: others are moved by torch."""
    return storage[0, 0, 0].numel() * storage.itemsize % _WORD == 0


def compact_kv_compiled(
    storage: torch.Tensor,  # [layers, pages, page_size, vectors, width], contiguous; written
    decode: DecodeRows,
    verify_result: VerifyResult,
    pages: torch.Tensor,  # [table_rows, max_pages]
) -> None:
    graph_break(_compact, storage, decode, verify_result, pages)


def _compact(
    storage: torch.Tensor, decode: DecodeRows, verify_result: VerifyResult, pages: torch.Tensor
) -> None:
    path, (layers, _, page_size, *_) = verify_result.path, storage.shape
    words = (
        storage.itemsize * storage.stride(2) // _WORD,
        storage.itemsize * storage.stride(0) // _WORD,
    )
    sizes = *path.shape, page_size, layers, *words, *pages.shape, pages.stride(0)
    tensors = (decode.rows, decode.lengths, verify_result.num_accepted, path, pages, storage)
    given = (*sizes, *(tensor.data_ptr() for tensor in tensors), 0)
    if run_alone(_FUNCTION, given)[NUM_OUTSIDE]:
        raise IndexError("an accepted node lies outside of the page table")
