"""The optimizer of a head: AdamW for all weights, or Muon for all matrices but lm_head."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from outrider.models.eagle.head_tensors import HEAD
from outrider.train.recipe import OptimizerKind

_BETAS = (0.9, 0.95)
_PREFIX = "optimizer"  # of its tensor names in checkpoints


class HeadOptimizer:
    """Owns the torch optimizers and their state. lm_head has its own learning rate."""

    def __init__(
        self, weights: Mapping[str, nn.Parameter], kind: OptimizerKind, *, is_fused: bool
    ) -> None:
        self._weights = weights
        by_muon = [name for name in weights if kind == "muon" and _is_body_matrix(weights, name)]
        others = [name for name in weights if name != HEAD and name not in by_muon]
        heads = [HEAD] if HEAD in weights else []  # a head may score with the target's
        adamw = torch.optim.AdamW(
            [{"params": self._some(names)} for names in (others, heads) if names],
            betas=_BETAS,
            weight_decay=0.0,
            fused=is_fused,
        )
        self._parts: list[tuple[torch.optim.Optimizer, Sequence[str]]] = [
            (adamw, [*others, *heads])
        ]
        if by_muon:
            # Muon steps are scaled to the length of AdamW steps, so one rate serves both.
            muon = torch.optim.Muon(
                self._some(by_muon), weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
            )
            self._parts.append((muon, by_muon))

    def step(self, *, body_rate: float, head_rate: float) -> None:
        """One step with these learning rates. Clears the gradients."""
        for optimizer, _ in self._parts:
            for group in optimizer.param_groups:
                is_head = group["params"][0] is self._weights.get(HEAD)
                group["lr"] = head_rate if is_head else body_rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The state of every weight that was trained, by name."""
        tensors: dict[str, torch.Tensor] = {}
        for optimizer, names in self._parts:
            for index, entry in optimizer.state_dict()["state"].items():
                tensors |= {f"{_PREFIX}.{key}.{names[index]}": each for key, each in entry.items()}
        return tensors

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Continue from the state of another optimizer."""
        for optimizer, names in self._parts:
            found = {index: _of_weight(tensors, name) for index, name in enumerate(names)}
            # A weight that was frozen until now has no state.
            state = {index: entry for index, entry in found.items() if entry}
            whole: dict[str, Any] = optimizer.state_dict()
            optimizer.load_state_dict({**whole, "state": state})

    def _some(self, names: Sequence[str]) -> list[nn.Parameter]:
        return [self._weights[name] for name in names]


def _is_body_matrix(weights: Mapping[str, nn.Parameter], name: str) -> bool:
    return name != HEAD and weights[name].ndim == 2


def _of_weight(tensors: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    split = {key: key.split(".", 2) for key in tensors if key.startswith(_PREFIX + ".")}
    return {parts[1]: tensors[key] for key, parts in split.items() if parts[2] == name}
