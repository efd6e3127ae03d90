"""Broken model files: they load and answer, or are refused by an error of ours."""

import importlib.util
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random

import torch
from support import recurrent_module, v4_module
from support.heads import write_head
from support.spoken import TEMPLATE, write_tokenizer
from support.tiny import save_tiny

from hostile.file_damage import damage_folder, damage_weights
from hostile.limited_child import run_limited
from hostile.parts import CaseReport
from outrider import LLM, SamplingParams
from outrider.models.model_config import read_config

FOLDERS = ("llama", "llama", "llama-tied", "qwen3-moe", "deepseek-v3", "qwen3-next", "deepseek-v4")
WITH_MODULES = ("qwen3-next", "deepseek-v4")
GGUFS = ("llama", "qwen2", "qwen3")
_ANSWER = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)


def run_case(seed: int) -> CaseReport:
    """One folder, head or GGUF file with one or two faults, loaded in a child process."""
    rng, report = Random(seed), CaseReport()
    kinds = ["folder", "folder", "folder", "head"]
    if importlib.util.find_spec("gguf"):
        kinds += ["gguf", "gguf"]
    kind = rng.choice(kinds)
    scratch = Path(tempfile.mkdtemp(prefix="broken-"))
    try:
        done, load = _PREPARE[kind](rng, scratch)
        os.environ["OUTRIDER_CACHE"] = str(scratch / "cache")  # what a GGUF file becomes
        ended, wrong = run_limited(load, scratch / "log")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    report.counts.update({f"{kind}s": 1, ended: 1})
    if wrong:
        report.failures.append(f"{kind} ({done}): {wrong}")
    return report


def _break_folder(rng: Random, scratch: Path):
    family = rng.choice(FOLDERS)
    folder = _copy(_saved(family), scratch / "model")
    done = damage_folder(rng, folder)
    drafts = ["none", "ngram", *(["mtp"] if family in WITH_MODULES else [])]
    draft = rng.choice(drafts)
    return f"{family}, draft {draft}, {done}", lambda: _answer(folder, draft)


def _break_head(rng: Random, scratch: Path):
    target, head = _saved("llama"), _copy(_saved("head"), scratch / "head")
    done = damage_folder(rng, head)
    return done, lambda: _answer(target, str(head))


def _break_gguf(rng: Random, scratch: Path):
    from support.gguf_files import tiny_gguf

    family, kind = rng.choice(GGUFS), rng.choice(["F32", "Q4_0", "Q4_K"])
    tiny = tiny_gguf(family, kind=kind)
    tiny.metadata["tokenizer.chat_template"] = TEMPLATE
    path = tiny.write(scratch / "model.gguf")
    done = damage_weights(rng, path)
    return f"{family} {kind}, {done}", lambda: _answer(path, "none")


def _answer(model: Path, draft: str) -> None:
    """Load a model and use all of its files."""
    llm = LLM(model, draft=draft, device="cpu", max_num_seqs=2, kv_tokens=4096)
    llm.generate([[3, 4, 5]], _ANSWER, use_tqdm=False)
    llm.generate(["the rider"], _ANSWER, use_tqdm=False)
    llm.chat([{"role": "user", "content": "the"}], _ANSWER, use_tqdm=False)


_PREPARE = {"folder": _break_folder, "head": _break_head, "gguf": _break_gguf}


@cache
def _saved(name: str) -> Path:
    """A whole folder of this family, made once."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # children are forked
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    if name == "head":
        return write_head(folder, read_config(_saved("llama")))
    if name == "deepseek-v4":
        v4_module.save_with_module(folder)
    elif name == "qwen3-next":
        recurrent_module.save_with_module(folder, name)
    else:
        save_tiny(name, folder)
    write_tokenizer(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    return folder


def _copy(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))
