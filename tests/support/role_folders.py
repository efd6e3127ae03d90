"""Tiny models with text for each way to draft, as folders that servers load."""

from pathlib import Path

import torch

from outrider.models.decoder_loader import load_decoder
from support import recurrent_module, v4_module
from support.heads import write_head
from support.modules import write_mimo
from support.spoken import write_tokenizer
from support.tiny import save_tiny

_CHAIN = ("--steps", "3", "--topk", "1", "--nodes", "4")
_TREE = ("--steps", "3", "--topk", "2", "--nodes", "6")


def _write_llama(folder: Path, *draft: str) -> tuple[str, ...]:
    save_tiny("llama", folder)
    return draft


def _write_head(folder: Path) -> tuple[str, ...]:
    save_tiny("llama", folder)
    target = load_decoder(folder, dtype="float32", device=torch.device("cpu"))
    return ("--draft", str(write_head(folder / "head", target.config)), *_TREE)


def _write_relative(folder: Path) -> tuple[str, ...]:
    save_tiny("llama", folder)
    save_tiny("llama", folder / "draft", disturbance=0.02)
    write_tokenizer(folder / "draft")
    return ("--draft", str(folder / "draft"), *_TREE)


def _write_modules(folder: Path, num: int, *sizes: str) -> tuple[str, ...]:
    write_mimo(folder, num=num)
    return ("--draft", "mtp", *sizes)


def _write_v4(folder: Path) -> tuple[str, ...]:
    v4_module.save_with_module(folder)
    return ("--draft", "mtp", *_CHAIN)


def _write_recurrent(folder: Path) -> tuple[str, ...]:
    recurrent_module.save_with_module(folder, "qwen3-next")
    return ("--draft", "mtp", *_CHAIN)


# Each writes a model and returns the flags of its drafter.
WRITERS = {
    "none": lambda folder: _write_llama(folder, "--draft", "none"),
    "ngram": lambda folder: _write_llama(folder, "--draft", "ngram"),
    "eagle3": _write_head,
    "draft model": _write_relative,
    "one module": lambda folder: _write_modules(folder, 1, *_TREE),
    "one module per depth": lambda folder: _write_modules(folder, 2),
    "v4": _write_v4,
    "qwen3-next": _write_recurrent,
}


def write_model(name: str, folder: Path) -> tuple[str, ...]:
    """Write a model with a tokenizer; the flags of its drafter."""
    flags = WRITERS[name](folder)
    write_tokenizer(folder)
    return flags
