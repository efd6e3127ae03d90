"""`top_tokens` on a CPU: logits are read once for the maximum and once for the sum."""

import torch

from outrider.ops.compiled.best_tokens import find_best_tokens
from outrider.ops.compiled.thread_team import run_alone, run_team
from outrider.ops.graph_break import graph_break
from outrider.ops.sampling.top_tokens import TopTokens

_FUNCTION = int(find_best_tokens.address)
_FEW = 1 << 14  # logits that one thread has read before another one has begun


def best_tokens_compiled(
    logits: torch.Tensor,  # [n, draft_vocab] float32, noise included
    target_ids: torch.Tensor,  # [draft_vocab] int64
    topk: int,
) -> TopTokens:
    top = TopTokens(
        logprobs=logits.new_empty(logits.shape[0], topk),
        tokens=target_ids.new_empty(logits.shape[0], topk),
    )
    graph_break(_find, logits, target_ids, top)
    return top


def _find(logits: torch.Tensor, target_ids: torch.Tensor, top: TopTokens) -> None:
    assert logits.dtype == torch.float32, "models compute so on a CPU"
    assert logits.stride(1) == 1, "unit stride along the vocabulary"
    (rows, width), num = logits.shape, top.tokens.shape[1]
    ids = target_ids.contiguous()
    sizes = rows, width, num, logits.stride(0)
    written = top.logprobs.data_ptr(), top.tokens.data_ptr()
    run = run_alone if logits.numel() < _FEW else run_team
    run(_FUNCTION, (*sizes, logits.data_ptr(), ids.data_ptr(), *written))
