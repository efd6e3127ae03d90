"""Tiny random models with a token for masks, and what they should draft."""

import json
from pathlib import Path
from typing import Any

import torch

from support.block_reference import BlockReference
from support.tiny import save_tiny

MASK = 6


def write_pard(folder: Path, **changes: Any) -> Any:
    """A PARD model; as transformers runs it."""
    theirs = save_tiny("llama", folder, seed=5)
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | {"pard_token": MASK, "spd_type": "pard"} | changes
    path.write_text(json.dumps(fields))
    return theirs


class PardOracle(BlockReference):
    """One pass of transformers over the whole text and the masks, without a cache."""

    def __init__(self, model: Any, *, size: int) -> None:
        self._model, self._size = model, size

    def marginal(self, states: torch.Tensor, depth: int) -> torch.Tensor:  # [vocab]
        logits: torch.Tensor = self._model.lm_head(states[depth])
        return logits

    def run_block(self, tokens: list[int]) -> torch.Tensor:  # [size, width]
        """The states of all slots of the block that begins with the last token."""
        text = torch.tensor([[*tokens, *[MASK] * (self._size - 1)]])
        states: torch.Tensor = self._model.model(text, use_cache=False).last_hidden_state
        return states[0, -self._size :]
