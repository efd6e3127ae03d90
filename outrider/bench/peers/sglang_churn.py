"""SGLang's offline engine under a load. Imported where SGLang is."""

from collections.abc import Sequence
from typing import Any

import sglang

from outrider.bench.peers.churn_peer import ChurnTask

_MEMORY_SHARE = 0.6  # of the GPU, which the benchmark itself uses a little of

# Those of a Hopper GPU, where no kernel has to be compiled first.
_BACKENDS = {
    "attention_backend": "fa3",
    "sampling_backend": "pytorch",
    "disable_prefill_cuda_graph": True,
    "disable_flashinfer_autotune": True,
}


class SglangChurn:
    """Owns SGLang's engine, without a prefix cache and without text."""

    def __init__(self, task: ChurnTask) -> None:
        limits = task.limits
        self._engine = sglang.Engine(
            model_path=task.folder,
            dtype=task.dtype,
            skip_tokenizer_init=True,
            disable_radix_cache=True,
            mem_fraction_static=_MEMORY_SHARE,
            max_running_requests=limits.rows,
            context_length=limits.context,
            grammar_backend="none",
            **_BACKENDS,
            log_level="error",
            **_speculation(task),
        )
        self._params = {
            "temperature": 0,
            "max_new_tokens": limits.max_tokens,
            "ignore_eos": True,
        }

    def answer(self, prompts: Sequence[Sequence[int]]) -> int:
        ids = [list(prompt) for prompt in prompts]
        outputs = self._engine.generate(input_ids=ids, sampling_params=self._params)
        return sum(output["meta_info"]["completion_tokens"] for output in outputs)

    def close(self) -> None:
        self._engine.shutdown()


def _speculation(task: ChurnTask) -> dict[str, Any]:
    draft = task.draft
    if not draft.folder:
        return {}
    return {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": draft.folder,
        "speculative_num_steps": draft.steps,
        "speculative_eagle_topk": draft.topk,
        "speculative_num_draft_tokens": draft.nodes,
    }
