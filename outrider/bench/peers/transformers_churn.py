"""transformers' `generate` under a load: one padded batch after another."""

from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from outrider.bench.peers.churn_peer import ChurnTask


class TransformersChurn:
    """Owns a model. A batch ends when all its answers do; then the next one begins."""

    def __init__(self, task: ChurnTask) -> None:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = AutoModelForCausalLM.from_pretrained(
            task.folder, dtype=task.dtype, local_files_only=True
        )
        self._model = model.eval().to(device)
        self._model.generation_config.eos_token_id = None  # answers have equal lengths
        self._limits = task.limits

    def answer(self, prompts: Sequence[Sequence[int]], *, rows: int) -> int:
        batches = (prompts[first : first + rows] for first in range(0, len(prompts), rows))
        return sum(self._answer_batch(batch) for batch in batches)

    def close(self) -> None:
        del self._model

    def _answer_batch(self, prompts: Sequence[Sequence[int]]) -> int:
        longest = max(map(len, prompts))
        tokens = torch.zeros(len(prompts), longest, dtype=torch.int64)  # [batch, longest]
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):  # padded on the left: answers begin together
            tokens[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        device = self._model.device
        output = self._model.generate(
            tokens.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=self._limits.max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        num_new: int = output[:, longest:].numel()
        return num_new
