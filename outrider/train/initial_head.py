"""The weights of a head that exists already, as the start of another run."""

from dataclasses import asdict, replace
from pathlib import Path

import torch

from outrider.errors import ConfigError
from outrider.models.eagle.head_config import (
    AuxStatesConfig,
    BlockHeadConfig,
    HeadConfig,
    HeadLayerConfig,
    OutputConfig,
)
from outrider.models.eagle.head_tensors import MAPS, expected_tensors
from outrider.models.eagle.inspect_head import OpenHead, open_head
from outrider.models.eagle.token_map import target_ids
from outrider.models.model_config import ModelConfig

_Part = AuxStatesConfig | HeadLayerConfig | OutputConfig | BlockHeadConfig


class InitialHead:
    """Owns the tensors of a head in a folder. Its sizes must be those of the run."""

    def __init__(
        self, folder: Path, config: HeadConfig, target: ModelConfig, target_folder: Path
    ) -> None:
        opened = open_head(folder, target, target_folder)
        if opened.report.problems:
            raise ConfigError(f"--init-from {folder}: {opened.report.problems[0]}")
        _check_same(folder, opened, config)
        self.weights = weights_of(opened)
        trained = expected_tensors(config, target_hidden=target.block.hidden).needed
        if others := sorted(self.weights.keys() - trained.keys()):
            raise ConfigError(
                f"--init-from {folder} has its own {others[0]}, and training uses the target's; "
                "use a head that outrider train made"
            )
        self.ids = target_ids(opened.tensors, config.output)  # [draft_vocab]

    def copy_to(self, weights: dict[str, torch.nn.Parameter]) -> None:
        """Replace the values of the weights that the head stores."""
        with torch.no_grad():
            for name, each in weights.items():
                if name in self.weights:
                    each.copy_(self.weights[name])


def weights_of(opened: OpenHead) -> dict[str, torch.Tensor]:
    """The weights that a head stores, without token maps."""
    return {name: each for name, each in opened.tensors.items() if name not in MAPS}


def _check_same(folder: Path, opened: OpenHead, config: HeadConfig) -> None:
    """Refuse a head that computes something else than the flags describe."""
    own = opened.report.config
    assert isinstance(own, HeadConfig), "a head without problems has a config"
    stored, wanted = _settings(own), _settings(config)
    for name in stored | wanted:
        if stored.get(name) != wanted.get(name):
            raise ConfigError(
                f"--init-from {folder}: its {name} is {stored.get(name)}, and these flags give "
                f"{wanted.get(name)}; use the flags with which it was trained"
            )


def _settings(config: HeadConfig) -> dict[str, object]:
    """What decides the weights of a head, by name. How many masks it drafts with is free."""
    parts: dict[str, _Part] = {"aux": config.aux, "layer": config.layer, "output": config.output}
    if config.blocks is not None:
        parts["blocks"] = replace(config.blocks, usual_drafts=0)
    found: dict[str, object] = {
        "kind": config.origin.algorithm,
        "number of layers": config.num_layers,
    }
    for name, part in parts.items():
        found |= _flat(name, asdict(part))
    return found


def _flat(name: str, value: object) -> dict[str, object]:
    """The values of nested records, by their names from the outermost on."""
    if not isinstance(value, dict):
        return {name: value}
    inner = (_flat(f"{name}.{key}", each) for key, each in value.items())
    return {key: each for part in inner for key, each in part.items()}
