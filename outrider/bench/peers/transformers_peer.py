"""transformers' `generate` with its dynamic cache, as most of its users run it on a CPU."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria
from transformers.utils import logging

from outrider.bench.offline.run_trace import Step, Trace
from outrider.config.engine_config import Dtype


class TransformersPeer:
    """Owns a model loaded from the same folder as ours."""

    def __init__(self, folder: Path, dtype: Dtype) -> None:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), local_files_only=True
        ).eval()
        # Answers have equal lengths; without an end to look for, each step is a little cheaper.
        self._model.generation_config.eos_token_id = None

    def run(self, prompts: Sequence[tuple[int, ...]], *, max_tokens: int) -> Trace:
        tokens = torch.tensor(prompts)  # [batch, prompt]
        clock = _Clock(len(prompts))
        self._model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=max_tokens,
            do_sample=False,
            stopping_criteria=[clock],
        )
        assert len(clock.steps) == max_tokens, "nothing may end an answer early"
        return tuple(clock.steps)


class _Clock(StoppingCriteria):  # type: ignore[misc]
    """Notes the time after every step; transformers calls it to decide whether to stop."""

    def __init__(self, num_rows: int) -> None:
        self.steps: list[Step] = []
        self._tokens = (1,) * num_rows
        self._never = torch.zeros(num_rows, dtype=torch.bool)
        self._start = time.perf_counter()

    def __call__(self, *_: Any, **__: Any) -> torch.Tensor:
        self.steps.append(Step(time.perf_counter() - self._start, self._tokens))
        return self._never  # [batch]
