"""Engines of one process whose steps contain the NCCL collectives of several.

NCCL refuses two ranks on one GPU, so one rank is all that one GPU can run. Its collectives change
no value, but they are launched, captured and replayed like those of a larger group.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch._C._distributed_c10d import HashStore

from outrider.config.engine_config import EngineConfig
from outrider.config.settings import resolve_settings
from outrider.distributed.rank_group import ExpertRanks, OneRank, RankGroup
from outrider.engine.engine import Engine
from outrider.models.decoder import Decoder
from outrider.models.decoder_loader import load_decoder
from outrider.models.layers.reduced_layers import JoinedHead, ReducedAttention, ReducedFeed
from outrider.runtime.build_runner import assemble_runner, choose_buckets
from outrider.runtime.load_draft import load_draft
from outrider.runtime.model_home import ModelHome

_TIMEOUT_S = 60.0


def engine_with_sums(folder: Path, config: EngineConfig) -> Engine:
    """Layers that are added up over the group, and logits that are joined."""
    device = torch.device(config.device)
    target = load_decoder(folder, dtype="float32", device=device)
    settings = resolve_settings(
        config, model_context=target.config.max_context, num_cuda=torch.cuda.device_count()
    )
    target = _with_collectives(target, _nccl(device))
    draft = load_draft(
        config.draft,
        target=target,
        target_folder=folder,
        dtype="float32",
        arithmetic="fast",
        max_context=settings.host.max_context,
    )
    runner, facts = assemble_runner(
        target,
        settings,
        draft=draft,
        kv_tokens=config.cache.kv_tokens,
        buckets=choose_buckets(settings, draft),
    )
    return Engine(runner, facts, runner.grammars)


def engine_with_experts(folder: Path, config: EngineConfig) -> Engine:
    """Experts that get the tokens of all ranks of the group."""
    group = _nccl(torch.device(config.device))
    ranks = OneRank(ExpertRanks(group=group, has_own_tokens=True), beside=group)
    runner, facts = ModelHome(folder, config, ranks=ranks).build()
    return Engine(runner, facts, runner.grammars)


def _nccl(device: torch.device) -> RankGroup:
    from outrider.distributed.nccl_ranks import NcclRanks  # not in torch's build for CPUs

    torch.cuda.set_device(device)
    return NcclRanks(HashStore(), rank=0, size=1, device=device, timeout_s=_TIMEOUT_S)


def _with_collectives(target: Decoder, ranks: RankGroup) -> Decoder:
    parts, vocab = target._parts, target.config.vocab_size
    layers = tuple(
        replace(
            layer,
            attention=ReducedAttention(layer.attention, ranks),
            mlp=ReducedFeed(layer.mlp, ranks),
        )
        for layer in parts.layers
    )
    head = JoinedHead(parts.head, ranks, vocab_size=vocab, own=range(vocab))
    return Decoder(target.config, replace(parts, layers=layers, head=head))
