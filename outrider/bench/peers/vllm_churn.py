"""vLLM's offline engine under a load. Imported where vLLM is."""

from collections.abc import Sequence
from typing import Any

from vllm import LLM, SamplingParams

from outrider.bench.peers.churn_peer import ChurnTask

_MEMORY_SHARE = 0.6  # of the GPU, which the benchmark itself uses a little of


class VllmChurn:
    """Owns vLLM's engine, without a prefix cache and without text."""

    def __init__(self, task: ChurnTask) -> None:
        limits = task.limits
        self._llm = LLM(
            task.folder,
            dtype=task.dtype,
            max_num_seqs=limits.rows,
            max_model_len=limits.context,
            enable_prefix_caching=False,
            gpu_memory_utilization=_MEMORY_SHARE,
            speculative_config=_speculation(task),
            skip_tokenizer_init=True,
            attention_backend="FLASH_ATTN",  # its own choice on most GPUs; needs no compiler
        )
        self._params = SamplingParams(
            temperature=0,
            max_tokens=limits.max_tokens,
            min_tokens=limits.max_tokens,
            ignore_eos=True,
            detokenize=False,
        )

    def answer(self, prompts: Sequence[Sequence[int]]) -> int:
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = self._llm.generate(requests, self._params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def close(self) -> None:
        del self._llm


def _speculation(task: ChurnTask) -> dict[str, Any] | None:
    """vLLM drafts chains, so a tree becomes a chain of its depth."""
    draft = task.draft
    if not draft.folder:
        return None
    return {"method": "eagle3", "model": draft.folder, "num_speculative_tokens": draft.steps}
