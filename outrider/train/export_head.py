"""Writes a trained head in a form that inference engines load."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from outrider.errors import ConfigError
from outrider.hub.atomic_folder import staged
from outrider.models.dflash.dflash_dialects import is_dflash_config
from outrider.models.dflash.dflash_tensors import MASK_FILE, MASK_VECTOR
from outrider.models.eagle.head_tensors import LAYER, MASK_STATE
from outrider.models.eagle.peagle_fields import is_peagle_config
from outrider.models.model_config import read_config
from outrider.train.checkpoints import TrainingCheckpoint
from outrider.train.head_design import ExportFormat, design_config, speculators_fields, token_maps

_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
DTYPES = tuple(_TYPES)


def export_head(
    checkpoint: TrainingCheckpoint,
    folder: Path,
    *,
    target_folder: Path,
    format: ExportFormat,
    dtype: str,
) -> int:
    """Write config.json and model.safetensors to a new folder. Returns the bytes of the tensors."""
    if folder.exists():
        raise ConfigError(f"{folder} exists already; remove it or choose another folder")
    fields = _fields(checkpoint, target_folder, format)
    tensors = _tensors(checkpoint, target_folder, format, dtype)
    mask = tensors.pop(MASK_VECTOR, None)
    content = save(tensors, metadata={"format": "pt"})
    with staged(folder) as partial:
        (partial / "model.safetensors").write_bytes(content)
        if mask is not None:
            torch.save(mask, partial / MASK_FILE)
        text = json.dumps({**fields, "torch_dtype": dtype}, indent=2) + "\n"
        (partial / "config.json").write_text(text, encoding="utf-8")
    return len(content)


def _fields(
    checkpoint: TrainingCheckpoint, target_folder: Path, format: ExportFormat
) -> dict[str, Any]:
    fields: dict[str, Any] = checkpoint.facts["fields"]
    if (is_dflash_config(fields) or is_peagle_config(fields)) and format != "eagle3":
        raise ConfigError("heads that draft blocks are exported in their own layout; omit --format")
    if format == "eagle3":
        return fields
    theirs = json.loads((target_folder / "config.json").read_text(encoding="utf-8"))
    return speculators_fields(
        fields,
        design_config(fields, read_config(target_folder)),
        target=checkpoint.facts["target"],
        architectures=theirs["architectures"],
    )


def _tensors(
    checkpoint: TrainingCheckpoint, target_folder: Path, format: ExportFormat, dtype: str
) -> dict[str, torch.Tensor]:
    weights = {
        name.removeprefix("weights."): tensor.to(_TYPES[dtype])
        for name, tensor in checkpoint.state_dict.items()
        if name.startswith("weights.")
    }
    if is_dflash_config(checkpoint.facts["fields"]):
        return weights  # they score with the target's lm_head
    if format == "eagle3":
        weights = {name.replace(LAYER, "midlayer."): each for name, each in weights.items()}
    if MASK_STATE in weights:
        weights[MASK_STATE] = weights[MASK_STATE][None]  # vLLM's parameter is a row
    return weights | token_maps(checkpoint.ids, read_config(target_folder).vocab_size)
