"""Which files a Hugging Face model folder must have."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from outrider.errors import ConfigError

_WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
_OF_EXPORTERS = ("gptq", "awq")  # in the names of files that stand for model.safetensors
# Of draft heads as some authors publish them: patterns of files that stand for the above.
HEAD_WEIGHTS = ("pytorch_model*.bin", "medusa_lm_head.*")


def missing_files(folder: Path, others: Sequence[str] = ()) -> tuple[str, ...]:
    """The files a model folder lacks; empty when it is complete. Weights may match `others`."""
    has_others = any(path for pattern in others for path in folder.glob(pattern))
    needed = ("config.json", *(() if has_others else weight_files(folder)))
    return tuple(name for name in needed if not (folder / name).is_file())


def checked_folder(folder: Path) -> Path:
    """The folder itself. Refuses a folder without a config or with missing weights."""
    if missing := missing_files(folder):
        raise ConfigError(
            f"the model folder {folder} lacks {missing[0]}; "
            "pass a complete Hugging Face folder with safetensors weights"
        )
    return folder


def read_weight_map(index: Path) -> dict[str, str]:
    """The file of every tensor, from the index of a model or a head stored in several files."""
    try:
        stored = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if all(isinstance(file, str) for file in stored.values()):
            return dict(stored)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(f"{index} is damaged; download the folder again") from error
    raise ConfigError(f"{index} is damaged; download the folder again")


def pick_files(
    holders: Mapping[str, Sequence[str]],  # the files that have each tensor
    weight_map: Mapping[str, str],
    folder: Path,
) -> dict[str, str]:
    """The file to read each tensor from. The index decides about tensors several files have."""
    picked = {}
    for name, files in holders.items():
        file = files[0] if len(files) == 1 else weight_map.get(name, "")
        if file not in files:
            raise ConfigError(
                f"{folder} has {name} in {' and '.join(files)}, and the index names neither; "
                "download the folder again"
            )
        picked[name] = file
    return picked


def weight_files(folder: Path) -> tuple[str, ...]:
    """The names of the files with the weights of a model, whether they are there or not.

    A single file may have the name that an exporter gave it (gptq_model-4bit-128g.safetensors).
    """
    if (folder / WEIGHTS_INDEX).is_file():
        return tuple(sorted(set(read_weight_map(folder / WEIGHTS_INDEX).values())))
    stored = sorted(path.name for path in folder.glob("*.safetensors"))
    is_exported = len(stored) == 1 and any(each in stored[0].lower() for each in _OF_EXPORTERS)
    return (stored[0],) if is_exported else (_WEIGHTS,)
