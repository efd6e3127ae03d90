"""Builds a draft head from its folder. Refuses every head that `inspect_head` refuses."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from outrider.config.engine_config import Arithmetic
from outrider.errors import ConfigError
from outrider.models.adapters.adapted_head import AdaptedHead
from outrider.models.block_model import AnyBlockModel
from outrider.models.dflash.dflash_loader import build_dflash
from outrider.models.draft_model import AnyDraftModel, ModelFacts
from outrider.models.eagle.eagle import EagleHead, EagleParts
from outrider.models.eagle.eagle3 import Eagle3Head, Eagle3Norms, Eagle3Parts
from outrider.models.eagle.head_builder import HeadBuilder
from outrider.models.eagle.head_config import BlockHeadConfig, HeadConfig
from outrider.models.eagle.head_tensors import LAYER, MASK_STATE
from outrider.models.eagle.inspect_head import open_head
from outrider.models.eagle.peagle import PEagleHead
from outrider.models.head_target import HeadTarget
from outrider.ops.linear.choose_linear import WeightType


def load_head(
    folder: Path,
    *,
    target: HeadTarget,
    target_folder: Path,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
) -> AnyDraftModel | AnyBlockModel:
    """The head in a folder, for a target. It may share weights of the target."""
    head = open_head(folder, target.config, target_folder)
    problems, config = head.report.problems, head.report.config
    if problems or not isinstance(config, HeadConfig):
        more = f" (and {len(problems) - 1} more: see outrider doctor)" if problems[1:] else ""
        raise ConfigError(f"the draft head {folder} is refused: {problems[0]}{more}")
    if config.blocks is None:
        return build_head(
            config, head.tensors, target, dtype=dtype, device=device, arithmetic=arithmetic
        )
    builder = HeadBuilder(
        config, head.tensors, target, dtype=dtype, device=device, arithmetic=arithmetic
    )
    if config.origin.algorithm == "peagle":
        return _build_peagle(config, config.blocks, builder)
    return build_dflash(config, config.blocks, builder, head.tensors)


def build_head(
    config: HeadConfig,
    tensors: Mapping[str, torch.Tensor],  # by canonical name
    target: HeadTarget,
    *,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
) -> AnyDraftModel:
    """An EAGLE head from tensors that are already checked."""
    builder = HeadBuilder(
        config, tensors, target, dtype=dtype, device=device, arithmetic=arithmetic
    )
    facts = ModelFacts(
        aux_layers=config.aux.aux_layers,
        width=config.width,
        lead=0,
        num_layers=config.num_layers,
        attention=config.layer.attention,
        # The KV of later layers depends on the first: a catch-up runs all layers.
        begins_with_forward=config.num_layers == 1,
    )
    bank = builder.reserve_adapters()
    if bank is None:
        return _eagle_head(config, facts, builder)
    return AdaptedHead(_eagle_head(config, replace(facts, has_adapters=True), builder), bank)


def _eagle_head(
    config: HeadConfig, facts: ModelFacts, builder: HeadBuilder
) -> EagleHead | Eagle3Head:
    if config.origin.algorithm == "eagle":
        return EagleHead(facts, _eagle_parts(config, builder), builder.later_layers())
    return Eagle3Head(facts, _eagle3_parts(config, builder), builder.later_layers())


def _build_peagle(config: HeadConfig, blocks: BlockHeadConfig, builder: HeadBuilder) -> PEagleHead:
    facts = ModelFacts(
        aux_layers=config.aux.aux_layers,
        width=config.width,
        lead=0,
        num_layers=config.num_layers,
        attention=config.layer.attention,
        begins_with_forward=True,
    )
    return PEagleHead(
        facts,
        blocks.block,
        _eagle3_parts(config, builder),
        later=builder.later_layers(),
        mask_hidden=builder.read(MASK_STATE)[None],
    )


def _eagle_parts(config: HeadConfig, builder: HeadBuilder) -> EagleParts:
    return EagleParts(
        embedding=builder.embedding(),
        join=builder.linear("fc", has_bias=config.aux.has_bias),
        layer=builder.layer(0),
        score=builder.score(),
        target_ids=builder.target_ids(),
    )


def _eagle3_parts(config: HeadConfig, builder: HeadBuilder) -> Eagle3Parts:
    return Eagle3Parts(
        embedding=builder.embedding(),
        project=builder.project(),
        layer=builder.layer(0),
        norms=Eagle3Norms(
            embedding=builder.norm(LAYER + "input_layernorm.weight"),
            state=builder.norm(LAYER + "hidden_norm.weight"),
            output=builder.norm("norm.weight"),
            is_residual_normed=config.layer.is_residual_normed,
            is_state_normed=config.output.is_state_normed,
        ),
        score=builder.score(),
        target_ids=builder.target_ids(),
    )
