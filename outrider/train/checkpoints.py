"""Checkpoints of a run: folders that appear complete or not at all. Only the last two remain."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from outrider.errors import ConfigError
from outrider.hub.atomic_folder import staged

_KEPT = 2
_TENSORS, _FACTS = "state.safetensors", "checkpoint.json"
_NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCheckpoint:
    """A run after some number of steps."""

    step: int  # steps taken so far
    facts: dict[str, Any]  # fields of the head, its target and the settings of the run
    state_dict: dict[str, torch.Tensor]  # of the trainer
    ids: torch.Tensor  # [draft_vocab] the target's ids of the head's tokens


def save_checkpoint(folder: Path, checkpoint: TrainingCheckpoint) -> Path:
    """Write the checkpoint, then delete the oldest ones."""
    path = folder / f"step-{checkpoint.step:08d}"
    if not path.is_dir():
        tensors = {**checkpoint.state_dict, "ids": checkpoint.ids}
        facts = {"step": checkpoint.step, **checkpoint.facts}
        try:
            with staged(path) as partial:
                # `save_file` reports a full disk by its own exception, `write_bytes` by OSError.
                (partial / _TENSORS).write_bytes(save(tensors))
                (partial / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        except ConfigError as error:
            reason = str(error).partition(";")[0]
            raise ConfigError(
                f"{reason}; make room and go on with --resume ({describe_last(folder)})"
            ) from error
    for old in list_checkpoints(folder)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    checkpoints = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in checkpoints if _NAME.fullmatch(path.name))


def describe_last(folder: Path) -> str:
    """The last checkpoint, for the message about a run that stopped."""
    checkpoints = list_checkpoints(folder)
    return (
        f"the last checkpoint is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
    )


def load_checkpoint(path: Path) -> TrainingCheckpoint:
    try:
        facts = json.loads((path / _FACTS).read_text(encoding="utf-8"))
        tensors: Mapping[str, torch.Tensor] = load_file(path / _TENSORS)
        step = int(facts.pop("step"))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(f"{path} is no checkpoint of a training run ({error})") from error
    state_dict = {name: tensor for name, tensor in tensors.items() if name != "ids"}
    return TrainingCheckpoint(step=step, facts=facts, state_dict=state_dict, ids=tensors["ids"])
