"""What moves the weights: AdamW for all of them, or Muon for the matrices of the body."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from outrider.models.eagle.head_tensors import HEAD
from outrider.train.recipe import OptimizerKind

_BETAS = (0.9, 0.95)
_MEMORY = "optimizer"  # of the names under which checkpoints keep its state


class HeadOptimizer:
    """Owns the optimizers and their memory. The scores are a group with a rate of their own."""

    def __init__(self, weights: Mapping[str, nn.Parameter], kind: OptimizerKind) -> None:
        self._weights = weights
        by_muon = [name for name in weights if kind == "muon" and _is_body_matrix(weights, name)]
        others = [name for name in weights if name != HEAD and name not in by_muon]
        is_fused = weights[HEAD].is_cuda
        adamw = torch.optim.AdamW(
            [{"params": self._some(others)}, {"params": self._some([HEAD])}],
            betas=_BETAS,
            weight_decay=0.0,
            fused=is_fused,
        )
        self._parts: list[tuple[torch.optim.Optimizer, Sequence[str]]] = [(adamw, [*others, HEAD])]
        if by_muon:
            # Its steps are as long as AdamW's, so that one rate serves both.
            muon = torch.optim.Muon(
                self._some(by_muon), weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
            )
            self._parts.append((muon, by_muon))

    def move(self, *, body: float, scores: float) -> None:
        """One step with these rates, and no gradients after it."""
        for optimizer, _ in self._parts:
            for group in optimizer.param_groups:
                group["lr"] = scores if group["params"][0] is self._weights[HEAD] else body
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def memory(self) -> dict[str, torch.Tensor]:
        """The state of every weight that has moved, by name."""
        held: dict[str, torch.Tensor] = {}
        for optimizer, names in self._parts:
            for index, entry in optimizer.state_dict()["state"].items():
                held |= {f"{_MEMORY}.{key}.{names[index]}": each for key, each in entry.items()}
        return held

    def remember(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Go on from what another mover knew."""
        for optimizer, names in self._parts:
            found = {index: _of_weight(memory, name) for index, name in enumerate(names)}
            # Weights that were frozen so far have no state.
            state = {index: entry for index, entry in found.items() if entry}
            whole: dict[str, Any] = optimizer.state_dict()
            optimizer.load_state_dict({**whole, "state": state})

    def _some(self, names: Sequence[str]) -> list[nn.Parameter]:
        return [self._weights[name] for name in names]


def _is_body_matrix(weights: Mapping[str, nn.Parameter], name: str) -> bool:
    return name != HEAD and weights[name].ndim == 2


def _of_weight(memory: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    split = {key: key.split(".", 2) for key in memory if key.startswith(_MEMORY + ".")}
    return {parts[1]: memory[key] for key, parts in split.items() if parts[2] == name}
