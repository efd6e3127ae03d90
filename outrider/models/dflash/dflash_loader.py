"""Builds a block-parallel head from checked tensors."""

from collections.abc import Mapping, Sequence

import torch

from outrider.models.dflash.dflash_head import DFlashHead, DFlashParts, Rows
from outrider.models.dflash.dflash_tensors import (
    CONFIDENCE,
    MARKOV_FROM,
    MARKOV_GATE,
    MARKOV_TO,
    MASK_VECTOR,
    SELECTOR_FROM,
    SELECTOR_SCALE,
    SELECTOR_TO,
    conv_name,
)
from outrider.models.dflash.markov_head import ConfidenceHead, MarkovHead
from outrider.models.dflash.slot_conv import SlotConv, SlotConvs
from outrider.models.draft_model import ModelFacts
from outrider.models.eagle.eagle_layer import NormedHeadLayer
from outrider.models.eagle.head_builder import HeadBuilder
from outrider.models.eagle.head_config import BlockHeadConfig, HeadConfig


def build_dflash(
    config: HeadConfig,
    blocks: BlockHeadConfig,
    builder: HeadBuilder,
    tensors: Mapping[str, torch.Tensor],
) -> DFlashHead:
    """The head with its layers, and its Markov and confidence heads where it has them."""
    facts = ModelFacts(
        aux_layers=config.aux.aux_layers,
        width=config.width,
        lead=0,
        num_layers=config.num_layers,
        attention=config.layer.attention,
        begins_with_forward=True,
    )
    layers = [
        builder.normed_layer(index, _convs(blocks, builder, index))
        for index in range(config.num_layers)
    ]
    return DFlashHead(facts, blocks.block, _parts(blocks, layers, builder, tensors))


def _parts(
    blocks: BlockHeadConfig,
    layers: Sequence[NormedHeadLayer],
    builder: HeadBuilder,
    tensors: Mapping[str, torch.Tensor],
) -> DFlashParts:
    embedding, fc = builder.embedding(), builder.project()
    context_norm, mask_token = builder.norm("hidden_norm.weight"), blocks.block.mask_token
    return DFlashParts(
        embedding=embedding,
        mask=builder.read(MASK_VECTOR) if blocks.has_mask_vector else embedding[mask_token],
        embedding_scale=blocks.local.embedding_scale if blocks.local else 1.0,
        project=lambda states: context_norm(fc(states)),
        layers=layers,
        causal_layers=blocks.causal_layers,
        norm=builder.norm("norm.weight"),
        score=_score(blocks, builder),
        target_ids=builder.target_ids(),
        num_candidates=blocks.local.num_candidates if blocks.local else None,
        markov=_markov(blocks, builder),
        confidence=_confidence(blocks, tensors, embedding.device),
    )


def _score(blocks: BlockHeadConfig, builder: HeadBuilder) -> Rows:
    """Logits by slot alone. A DFlash2 head may scale them, and bound them after that."""
    score, local = builder.score(), blocks.local
    if local is None or (local.logit_scale, local.logit_cap) == (1.0, 0.0):
        return score
    scale, cap = local.logit_scale, local.logit_cap

    def scaled(states: torch.Tensor) -> torch.Tensor:
        logits = score(states) * scale
        return torch.tanh(logits / cap) * cap if cap else logits

    return scaled


def _convs(blocks: BlockHeadConfig, builder: HeadBuilder, layer: int) -> SlotConvs | None:
    if blocks.local is None:
        return None
    attention, mlp = (
        SlotConv(
            base=builder.read(conv_name(layer, part) + "base_kernel"),
            project=builder.linear(conv_name(layer, part) + "kernel_projection", has_bias=False),
            size=blocks.block.size,
        )
        for part in ("attention", "mlp")
    )
    return SlotConvs(attention=attention, mlp=mlp)


def _markov(blocks: BlockHeadConfig, builder: HeadBuilder) -> MarkovHead | None:
    if blocks.local is not None:
        scale = builder.linear(SELECTOR_SCALE, has_bias=False)
        score = builder.make_linear(builder.read(SELECTOR_TO))
        return MarkovHead(vectors=builder.read(SELECTOR_FROM), score=score, gate=None, scale=scale)
    if blocks.markov is None:
        return None
    gate = builder.linear(MARKOV_GATE, has_bias=True) if blocks.markov.is_gated else None
    score = builder.linear(MARKOV_TO.removesuffix(".weight"), has_bias=False)
    return MarkovHead(vectors=builder.read(MARKOV_FROM), score=score, gate=gate)


def _confidence(
    blocks: BlockHeadConfig, tensors: Mapping[str, torch.Tensor], device: torch.device
) -> ConfidenceHead | None:
    if blocks.confidence is None:
        return None
    weight = tensors[f"{CONFIDENCE}.weight"].flatten()
    bias = tensors.get(f"{CONFIDENCE}.bias", torch.zeros(1))
    return ConfidenceHead(
        weight=weight.to(device, torch.float32),
        bias=bias.to(device, torch.float32),
        reads_token=blocks.confidence.reads_token,
    )
