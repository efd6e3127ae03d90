"""Tiny targets with row state and the drafters that they take, made once and shared."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from outrider.models.any_head import load_any_head
from outrider.models.deepseek_v4.v4_dspark import load_v4_dspark
from outrider.models.deepseek_v4.v4_module import load_v4_module
from outrider.models.mtp.module_loader import load_modules
from outrider.models.target import load_target
from outrider.runtime.draft_kinds import BlockDraft, ModelDraft, ModulesDraft
from outrider.wire.draft_budget import Budget
from support import recurrent_module, v4_dspark, v4_module
from support.heads import write_head
from support.modules import edit_config
from support.row_matrix import CHAIN, PLAIN

MODULE_CHAIN = Budget(steps=3, topk=1, nodes=4)
# The last two: two modules, and DSpark in their place.
FAMILIES = ("v4", "qwen3-next", "qwen3.5", "qwen3-next-2", "v4-dspark")


def row_model(family: str, device: str = "cpu"):
    """A target and its drafters by name: modules are repeated, or two of one target."""
    return _made(family, device)[:2]


def row_reference(family: str) -> PreTrainedModel:
    """The target as transformers runs it."""
    return _made(family, "cpu")[2]


@cache
def _made(family: str, device: str):
    folder = Path(mkdtemp())
    if family == "v4":
        oracle = v4_module.save_with_module(folder)
    elif family == "v4-dspark":
        oracle = v4_dspark.save_with_dspark(folder)
    else:
        oracle = recurrent_module.save_with_module(folder, family.removesuffix("-2"))
    if family == "qwen3-next-2":
        add_second_module(folder)
    target = load_target(folder, dtype="float32", device=torch.device(device))
    drafts = {"none": PLAIN, "ngram": CHAIN, "modules": _modules(folder, family, target)}
    return target, drafts | {"head": _head(folder, target)}, oracle.theirs


def _head(folder, target):
    head = write_head(folder / "head", target.config)
    model = load_any_head(head, target, folder, dtype="float32", arithmetic="fast")
    return ModelDraft(model=model, budget=MODULE_CHAIN)


def _modules(folder, family, target):
    if family == "v4-dspark":
        model = load_v4_dspark(folder, target.config.dspark, target, dtype="float32")
        return BlockDraft(model=model, budget=MODULE_CHAIN)
    if family == "v4":
        return ModelDraft(
            model=load_v4_module(folder, target, dtype="float32"), budget=MODULE_CHAIN
        )
    if family == "qwen3-next-2":
        modules = load_modules(folder, target=target, most=2, dtype="float32")
        return ModulesDraft(modules=modules, budget=Budget(steps=2, topk=1, nodes=3))
    model = load_modules(folder, target=target, most=1, dtype="float32")
    return ModelDraft(model=model, budget=MODULE_CHAIN)


def add_second_module(folder):
    stored = load_file(folder / "model.safetensors")
    again = {
        name.replace("mtp.layers.0.", "mtp.layers.1."): each.flip(0).contiguous()
        for name, each in stored.items()
        if name.startswith("mtp.layers.0.")
    }
    save_file(stored | again, folder / "model.safetensors", metadata={"format": "pt"})
    edit_config(folder, num_nextn_predict_layers=2)
