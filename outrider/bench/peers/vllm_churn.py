"""vLLM's offline engine under a load. Imported where vLLM is."""

import itertools
from collections.abc import Sequence

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from outrider.bench.peers.churn_peer import ChurnTask
from outrider.bench.peers.peer_speculation import vllm_speculation

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
            speculative_config=vllm_speculation(task.draft),
            skip_tokenizer_init=True,
            attention_backend="FLASH_ATTN",  # its own choice on most GPUs; needs no compiler
        )
        self._params = SamplingParams(
            temperature=0,
            max_tokens=limits.max_tokens,
            min_tokens=limits.max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._names = map(str, itertools.count())

    def answer(self, prompts: Sequence[Sequence[int]], *, rows: int) -> int:
        engine = self._llm.llm_engine
        num_added = num_ended = num_tokens = 0
        while num_ended < len(prompts):
            while num_added < len(prompts) and num_added - num_ended < rows:
                request = {"prompt_token_ids": list(prompts[num_added])}
                engine.add_request(next(self._names), request, self._params)
                num_added += 1
            ended = [output for output in engine.step() if output.finished]
            num_ended += len(ended)
            num_tokens += sum(len(output.outputs[0].token_ids) for output in ended)
        return num_tokens

    def close(self) -> None:
        del self._llm
