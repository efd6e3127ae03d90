"""Our engine as its users call it, without text: token ids in, token ids out, as the peers run."""

import time
from collections.abc import Sequence
from pathlib import Path

from outrider.bench.offline.offline_args import Lengths
from outrider.bench.offline.run_trace import Step, Trace
from outrider.config.engine_config import Dtype
from outrider.frontend.llm import LLM
from outrider.frontend.prompts import TokenPrompt
from outrider.frontend.sampling_params import SamplingParams
from outrider.models.target import read_target


class OurEngine:
    """Owns an engine with room for one batch. It has no prefix cache: repetitions must compute."""

    def __init__(self, folder: Path, *, dtype: Dtype, lengths: Lengths, max_batch: int) -> None:
        context = lengths.prompt + lengths.answer
        page_size = read_target(folder).usual_page_size
        self._frontend = LLM(
            folder,
            draft="none",
            dtype=dtype,
            device="cpu",
            max_model_len=context,
            max_num_seqs=max_batch,
            enable_prefix_caching=False,
            # Two pages to spare for each row, so that all rows run at a time.
            kv_tokens=max_batch * (context + 2 * page_size),
        ).frontend

    def run(self, prompts: Sequence[tuple[int, ...]], *, max_tokens: int) -> Trace:
        frontend = self._frontend
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        live = [
            frontend.submit(frontend.inputs.prepare(TokenPrompt(prompt), params))
            for prompt in prompts
        ]
        steps, before = [], (0,) * len(live)
        while not frontend.is_idle:
            frontend.step()
            after = tuple(len(request.outputs[0].token_ids) for request in live)
            if after != before:
                tokens = tuple(new - old for new, old in zip(after, before, strict=True))
                steps.append(Step(time.perf_counter() - start, tokens))
            before = after
        return tuple(steps)
