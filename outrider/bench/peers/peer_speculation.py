"""How other engines are told to draft with a head. No torch, and none of those engines."""

from typing import Any

from outrider.bench.peers.churn_peer import PeerDraft

# By the kind of head. vLLM drafts chains; a P-EAGLE head is an EAGLE-3 head that drafts at once.
_VLLM: dict[str, dict[str, Any]] = {
    "eagle": {"method": "eagle"},
    "eagle3": {"method": "eagle3"},
    "peagle": {"method": "eagle3", "parallel_drafting": True},
    "dflash": {"method": "dflash"},
    "dflash2": {"method": "dflash"},
    "dspark": {"method": "dspark"},
    "medusa": {"method": "medusa"},
}
_SGLANG_TREES = {"eagle": "EAGLE", "eagle3": "EAGLE3"}
_SGLANG_BLOCKS = {"dflash": "DFLASH", "dflash2": "DFLASH", "dspark": "DSPARK"}

PEER_HEADS: dict[str, frozenset[str]] = {  # kinds of heads that a peer loads
    "vllm": frozenset(_VLLM),
    "sglang": frozenset(_SGLANG_TREES | _SGLANG_BLOCKS),
    "transformers": frozenset(),
}


def vllm_speculation(draft: PeerDraft) -> dict[str, Any] | None:
    """vLLM's `speculative_config`. A tree becomes a chain of its depth."""
    if not draft.folder:
        return None
    return {**_VLLM[draft.kind], "model": draft.folder, "num_speculative_tokens": draft.steps}


def sglang_speculation(draft: PeerDraft) -> dict[str, Any]:
    """SGLang's arguments. Its blocks are chains, and their tokens count the root."""
    if not draft.folder:
        return {}
    where = {"speculative_draft_model_path": draft.folder}
    if draft.kind in _SGLANG_BLOCKS:
        return {
            **where,
            "speculative_algorithm": _SGLANG_BLOCKS[draft.kind],
            "speculative_num_draft_tokens": draft.steps + 1,
        }
    return {
        **where,
        "speculative_algorithm": _SGLANG_TREES[draft.kind],
        "speculative_num_steps": draft.steps,
        "speculative_eagle_topk": draft.topk,
        "speculative_num_draft_tokens": draft.nodes,
    }
