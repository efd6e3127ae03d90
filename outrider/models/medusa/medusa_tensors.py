"""The tensors of Medusa heads: canonical names, which are vLLM's, and their shapes."""

import re
from collections.abc import Mapping

import torch

from outrider.models.eagle.head_tensors import TOKEN_MAP, ExpectedTensors
from outrider.models.medusa.medusa_fields import MedusaConfig

_PREFIX = re.compile(r"^(?:model\.|medusa_heads?\.)+")
_AUTHORS_BLOCK = re.compile(r"^(\d+)\.(\d+)\.linear\.(weight|bias)$")
_AUTHORS_HEAD = re.compile(r"^(\d+)\.\d+\.weight$")
_OF_HEAD = re.compile(r"^(?:blocks|lm_heads)\.(\d+)\.")


def canonical_medusa(name: str) -> str:
    """The canonical name of a stored tensor."""
    name = _PREFIX.sub("", name)
    name = _AUTHORS_BLOCK.sub(r"blocks.\1.layers.\2.\3", name)
    name = _AUTHORS_HEAD.sub(r"lm_heads.\1.weight", name)
    return "lm_heads.0.weight" if name == "lm_head.weight" else name


def split_heads(
    tensors: Mapping[str, torch.Tensor], num_heads: int
) -> tuple[dict[str, torch.Tensor], int]:
    """The tensors of the first heads and what they share, and how many heads are stored."""
    numbers = {name: int(found[1]) for name in tensors if (found := _OF_HEAD.match(name))}
    used = {name: each for name, each in tensors.items() if numbers.get(name, 0) < num_heads}
    return used, 1 + max(numbers.values(), default=-1)


def cut_to_map(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same with lm_heads of the map's tokens alone: some are stored with all tokens."""
    ids = tensors.get(TOKEN_MAP, torch.empty(0))
    if ids.is_floating_point() or ids.ndim != 1 or not len(ids) or int(ids.min()) < 0:
        return dict(tensors)  # the report tells what is wrong
    most = max(int(ids.max()) + 1, len(ids) + 1)
    return {
        name: each[ids.long()] if _is_longer(name, each, most) else each
        for name, each in tensors.items()
    }


def _is_longer(name: str, tensor: torch.Tensor, num: int) -> bool:
    """Whether a tensor is an lm_head of at least so many tokens."""
    return name.startswith("lm_heads.") and tensor.ndim == 2 and len(tensor) >= num


def block_name(head: int, block: int) -> str:
    """The linear layer of a residual block."""
    return f"blocks.{head}.layers.{block}"


def score_name(config: MedusaConfig, head: int) -> str:
    """The weight of the lm_head of a head."""
    return f"lm_heads.{0 if config.shares_head else head}.weight"


def expected_medusa(config: MedusaConfig, *, hidden: int, vocab: int) -> ExpectedTensors:
    """The tensors of such heads for a target of this width and vocabulary."""
    needed: dict[str, tuple[int, ...]] = {}
    for head in range(config.num_heads):
        for block in range(config.num_blocks):
            name = block_name(head, block)
            needed[f"{name}.weight"] = (hidden, hidden)
            needed |= {f"{name}.bias": (hidden,)} if config.has_bias else {}
        needed[score_name(config, head)] = (config.draft_vocab, hidden)
    if config.draft_vocab != vocab:
        needed[TOKEN_MAP] = (config.draft_vocab,)
    return ExpectedTensors(needed=needed, optional={})
