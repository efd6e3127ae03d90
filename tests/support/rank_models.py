"""Tiny models of every family as the ranks of one group compute them, and what drafts for them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch

from outrider.distributed.rank_group import ExpertRanks, OneRank, RankGroup
from outrider.models.block_model import BlockModel
from outrider.models.decoder import Decoder
from outrider.models.decoder_loader import load_decoder
from outrider.models.deepseek_v4.v4_dspark import load_v4_dspark
from outrider.models.deepseek_v4.v4_module import load_v4_module
from outrider.models.eagle.head_loader import load_head
from outrider.models.mtp.module_chain import ModuleChain
from outrider.models.mtp.module_loader import load_modules
from outrider.models.rank_share import ranks_that_share
from outrider.models.standalone_draft import StandaloneDraft
from outrider.models.target import AnyTarget, load_target, read_target
from outrider.runtime.draft_kinds import (
    BlockDraft,
    DraftKind,
    ModelDraft,
    ModulesDraft,
    NgramDraft,
    NoDraft,
)
from outrider.wire.draft_budget import Budget
from support import recurrent, recurrent_module, v4_dspark, v4_module
from support.block_heads import BLOCKS, write_block_head
from support.heads import write_head
from support.modules import TABLES, WithModules, with_modules
from support.thread_ranks import ThreadGroup, ThreadRank
from support.tiny import save_tiny, tiny_model

CPU = torch.device("cpu")
STACKED = "qwen3-moe-stacked"  # the same model, stored with all experts in one tensor
V4 = "deepseek-v4"
V4_DSPARK = "deepseek-v4-dspark"  # with DSpark in place of its module
# The numbers of ranks that can share a family.
PAGED = {
    "llama": (2, 4),
    "llama-tied": (2, 4),
    "llama-uneven": (2, 3, 4),
    "qwen2": (2, 4),
    "qwen3": (2, 4),
    "mixtral": (2, 4),
    "qwen3-moe": (2, 4),
    STACKED: (2, 4),
    "qwen3-moe-mixed": (2,),
    "deepseek-v2-lite": (2, 3, 4),
    "deepseek-v2": (2, 3),
    "deepseek-v3": (2, 3, 4),
    "glm4-moe": (2, 4),
    "glm4-moe-air": (2, 4),
}
ROW_STATE = {**dict.fromkeys(recurrent.FAMILIES, (2,)), V4: (2,), V4_DSPARK: (2,)}
DRAFTERS = ["none", "ngram", "twin", "relative", "stranger", "eagle", "eagle3"]
DRAFTERS += ["dflash", "dspark", "mtp", "modules"]
NO_CHAIN = ("modules",)  # one module per depth: chains only


def drafters_of(family: str) -> list[str]:
    """The drafters that a family can have."""
    if family == V4_DSPARK:
        return ["mtp"]
    if family == V4:
        return ["none", "ngram", "stranger", "eagle3", "mtp"]
    if family in ROW_STATE:
        return ["none", "ngram", "stranger", "eagle3", "mtp"]
    return DRAFTERS


@dataclass
class RankFamily:
    """A saved model, and its folders with modules and of models that resemble it."""

    name: str
    root: Path

    @cached_property
    def theirs(self) -> Any:
        """The model as transformers runs it."""
        self.root.mkdir(parents=True, exist_ok=True)
        if self.name == V4:
            return v4_module.save_with_module(self.folder).theirs
        if self.name == V4_DSPARK:
            return v4_dspark.save_with_dspark(self.folder).theirs
        if self.name in ROW_STATE:
            return recurrent_module.save_with_module(self.folder, self.name).theirs
        if self.name == STACKED:
            model = tiny_model("qwen3-moe")
            model.save_pretrained(self.folder, save_original_format=False)
            return model
        return save_tiny(self.name, self.folder)

    @property
    def folder(self) -> Path:
        return self.root / "target"

    @property
    def body(self) -> str:
        return "qwen3-moe" if self.name == STACKED else self.name

    @cached_property
    def with_modules(self) -> WithModules:
        return with_modules(self.root / "modules", TABLES["deepseek"], num=3, body=self.body)

    @cached_property
    def relative(self) -> Path:
        save_tiny(self.body, self.root / "relative", disturbance=0.02)
        return self.root / "relative"

    @cached_property
    def stranger(self) -> Path:
        save_tiny("llama", self.root / "stranger", seed=7)
        return self.root / "stranger"

    @cached_property
    def heads(self) -> dict[str, Path]:
        config = read_target(self.folder)
        for name, variant in BLOCKS.items():
            write_block_head(self.root / name, config, variant)
        for name in ("eagle", "eagle3"):
            write_head(self.root / name, config, algorithm=name)
        return {name: self.root / name for name in ("eagle", "eagle3", *BLOCKS)}

    @cache  # noqa: B019 - as long as the family
    def on(self, size: int, *, has_own_requests: bool = False) -> "RankedModels":
        assert self.theirs is not None, "saved"
        return RankedModels(self, size, has_own_requests=has_own_requests)

    def __hash__(self) -> int:
        return hash((self.name, self.root))


class RankedModels:
    """The target of one family on every rank of a group."""

    def __init__(self, family: RankFamily, size: int, *, has_own_requests: bool = False) -> None:
        self.family = family
        self.group = ThreadGroup(size)
        self.shared_by = self._on_each(own_requests if has_own_requests else lambda ranks: ranks)
        self.targets = [load_on(family.folder, ranks) for ranks in self.shared_by]
        self._models: dict[str, list[Any]] = {}

    def drafts(self, name: str, budget: Budget, *, is_adaptive: bool = False) -> list[DraftKind]:
        """The drafter of every rank."""
        if name == "none":
            return [NoDraft()] * len(self.targets)
        how: dict[str, Any] = {"budget": budget, "is_adaptive": is_adaptive}
        if name == "ngram":
            return [NgramDraft(**how, min_match=1, max_match=4)] * len(self.targets)
        if name == "modules":
            return [ModulesDraft(modules=each, **how) for each in self._loaded(name)]
        models = self._loaded(name)
        kind = BlockDraft if isinstance(models[0], BlockModel) else ModelDraft
        return [kind(model=each, **how) for each in models]

    def _loaded(self, name: str) -> list[Any]:
        if name not in self._models:
            self._models[name] = [
                self._load(name, target, ranks)
                for target, ranks in zip(self.targets, self.shared_by, strict=True)
            ]
        return self._models[name]

    def _load(self, name: str, target: AnyTarget, ranks: RankGroup) -> Any:
        family = self.family
        if name == "mtp" and family.name == V4:
            return load_v4_module(family.folder, target, dtype="float32")
        if name == "mtp" and family.name == V4_DSPARK:
            return load_v4_dspark(family.folder, target.config.dspark, target, dtype="float32")
        if name == "mtp" and family.name in ROW_STATE:
            return load_modules(family.folder, target=target, most=1, dtype="float32")
        if name in ("mtp", "modules"):
            return self._modules(target, most=1 if name == "mtp" else 3)
        if name in ("eagle", "eagle3", *BLOCKS):
            return load_head(
                family.heads[name],
                target=target,
                target_folder=family.folder,
                dtype="float32",
                device=CPU,
            )
        folder = family.relative if name == "relative" else family.stranger
        decoder = target if name == "twin" else load_shared(folder, ranks)
        return StandaloneDraft(decoder, target_vocab=target.config.vocab_size)

    def _modules(self, target: Decoder, *, most: int) -> ModuleChain:
        own = self.family.with_modules
        config = replace(target.config, family=own.target.config.family)
        with_table = Decoder(config, target._parts, share=target.share, ranks=target.ranks)
        return load_modules(own.folder, target=with_table, most=most, dtype="float32")

    def _on_each(self, load: Callable[[ThreadRank], Any]) -> list[Any]:
        return [load(ranks) for ranks in self.group.ranks]


def own_requests(ranks: ThreadRank) -> RankGroup:
    """Ranks that share only the experts."""
    return OneRank(ExpertRanks(group=ranks, has_own_tokens=True), beside=ranks)


def load_on(folder: Path, ranks: RankGroup) -> AnyTarget:
    return load_target(folder, dtype="float32", device=CPU, ranks=ranks)


def load_shared(folder: Path, ranks: RankGroup) -> Decoder:
    """A draft model as `load_standalone` loads it; these folders have no tokenizers."""
    plain = load_decoder(folder, dtype="float32", device=CPU)
    shared = ranks_that_share(plain.config, ranks)
    return load_decoder(folder, dtype="float32", device=CPU, ranks=shared)
