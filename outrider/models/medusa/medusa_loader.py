"""Builds Medusa heads from their folder. Refuses all heads that `inspect_medusa` refuses."""

from collections.abc import Mapping
from pathlib import Path

import torch

from outrider.config.engine_config import Arithmetic
from outrider.errors import ConfigError
from outrider.models.draft_model import AuxLayers, ModelFacts
from outrider.models.eagle.eagle_layer import apply_padded
from outrider.models.eagle.head_tensors import TOKEN_MAP
from outrider.models.head_target import HeadTarget
from outrider.models.medusa.inspect_medusa import OpenMedusa, open_medusa
from outrider.models.medusa.medusa_fields import MedusaConfig
from outrider.models.medusa.medusa_heads import MedusaHeads, Score
from outrider.models.medusa.medusa_tensors import block_name, score_name
from outrider.models.model_config import AttentionConfig
from outrider.ops.linear.choose_linear import WeightType, choose_linear
from outrider.ops.linear.linear import BiasedLinear, Linear
from outrider.ops.sampling.widen_logits import widen_logits

_NO_ATTENTION = AttentionConfig(heads=1, kv_heads=1, head_dim=2)  # of no layers


def load_medusa(
    folder: Path,
    *,
    target: HeadTarget,
    target_folder: Path,
    dtype: WeightType,
    arithmetic: Arithmetic = "fast",
) -> MedusaHeads:
    """The heads in a folder, for a target."""
    opened = open_medusa(folder, target.config, target_folder)
    problems = opened.report.problems
    if problems or not isinstance(opened.config, MedusaConfig):
        raise ConfigError(f"the draft head {folder} is refused: {problems[0]}")
    return _Builder(opened, opened.config, target, dtype, arithmetic).build()


class _Builder:
    """Makes the parts of all heads from checked tensors."""

    def __init__(
        self,
        opened: OpenMedusa,
        config: MedusaConfig,
        target: HeadTarget,
        dtype: WeightType,
        arithmetic: Arithmetic,
    ) -> None:
        self._tensors: Mapping[str, torch.Tensor] = opened.tensors
        self._config = config
        self._target = target
        self._make_linear = choose_linear(dtype, target.embedding.device, arithmetic)
        ids = self._tensors.get(TOKEN_MAP, torch.arange(config.draft_vocab)).long()
        self._ids, self._order = ids.sort()  # the map lists tokens by how frequent they are

    def build(self) -> MedusaHeads:
        config, target = self._config, self._target
        facts = ModelFacts(
            aux_layers=AuxLayers(final=True),
            width=target.config.hidden,
            lead=0,
            num_layers=0,
            attention=_NO_ATTENTION,
            begins_with_forward=True,
        )
        heads, blocks = range(config.num_heads), range(config.num_blocks)
        scores = {name: self._score(name) for name in {score_name(config, head) for head in heads}}
        return MedusaHeads(
            facts,
            self._ids.to(target.embedding.device),
            blocks=[[self._block(block_name(head, block)) for block in blocks] for head in heads],
            scores=[scores[score_name(config, head)] for head in heads],
        )

    def _block(self, name: str) -> Linear:
        linear = self._make_linear(self._read(f"{name}.weight"))
        return BiasedLinear(linear, self._read(f"{name}.bias")) if self._config.has_bias else linear

    def _score(self, name: str) -> Score:
        linear = self._make_linear(self._read(name)[self._order.to(self._target.embedding.device)])
        return lambda states: widen_logits(apply_padded(linear, states))

    def _read(self, name: str) -> torch.Tensor:
        return self._tensors[name].to(self._target.embedding.device, self._target.dtype)
