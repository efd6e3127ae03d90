"""SGLang's offline engine under a load. Imported where SGLang is."""

import asyncio
from collections.abc import Sequence

import sglang

from outrider.bench.peers.churn_peer import ChurnTask
from outrider.bench.peers.peer_speculation import sglang_speculation

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
            **sglang_speculation(task.draft),
        )
        self._params = {
            "temperature": 0,
            "max_new_tokens": limits.max_tokens,
            "ignore_eos": True,
        }

    def answer(self, prompts: Sequence[Sequence[int]], *, rows: int) -> int:
        # SGLang's own loop: it has the handler of its processes.
        num_tokens: int = self._engine.loop.run_until_complete(self._answer(prompts, rows))
        return num_tokens

    def close(self) -> None:
        self._engine.shutdown()

    async def _answer(self, prompts: Sequence[Sequence[int]], rows: int) -> int:
        free = asyncio.Semaphore(rows)

        async def answer_one(prompt: Sequence[int]) -> int:
            async with free:
                output = await self._engine.async_generate(
                    input_ids=list(prompt), sampling_params=self._params
                )
            num_tokens: int = output["meta_info"]["completion_tokens"]
            return num_tokens

        return sum(await asyncio.gather(*map(answer_one, prompts)))
