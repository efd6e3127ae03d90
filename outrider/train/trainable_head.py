"""A stored head as the start of training, and which heads training cannot go on with.

Training has its own form of a head, for the heads that `outrider train` makes. A head that computes
anything else would be another head after training, so it is refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.errors import ConfigError
from outrider.models.config_fields import read_fields
from outrider.models.eagle.head_config import Algorithm, BlockHeadConfig, HeadConfig
from outrider.models.eagle.head_tensors import EMBEDDING, HEAD
from outrider.models.eagle.inspect_head import is_head, open_head
from outrider.models.eagle.token_map import target_ids
from outrider.models.medusa.inspect_medusa import is_medusa
from outrider.models.model_config import AttentionConfig
from outrider.ops.attention.attention_rule import WHOLE_TEXT
from outrider.train.export_head import DTYPES
from outrider.train.head_design import dense_target
from outrider.train.initial_head import weights_of
from outrider.train.recipe import LearningRates, Recipe
from outrider.train.trainer import LIKE_EAGLE, HeadSpec, Trainer
from outrider.train.training_device import TrainingDevice

_NOT_TRAINED: dict[Algorithm, str] = {"eagle": "EAGLE 1 or 2", "dflash2": "DFlash2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableHead:
    """A stored head that training can go on with."""

    spec: HeadSpec
    fields: dict[str, Any]  # its config.json
    tensors: Mapping[str, torch.Tensor]  # by canonical name, without token maps

    @property
    def dtype(self) -> str:
        """The type of its weights, as an export names it."""
        stored = str(self.tensors["fc.weight"].dtype).removeprefix("torch.")
        return stored if stored in DTYPES else "float32"

    def state_dict(self, initial: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Its weights as a trainer loads them; `initial` are the trainer's own.

        An lm_head that is not stored is the target's, and so is that of a new trainer.
        """
        return {
            f"weights.{name}": self.tensors.get(name, each).float()
            for name, each in initial.items()
        }


def open_trainable(folder: Path, target_folder: Path) -> TrainableHead:
    """The head in a folder, ready to be trained on. Others are refused, with the reason."""
    target = dense_target(target_folder)
    if not is_head(folder):
        raise ConfigError(
            f"{folder} is a whole model, and only draft heads are trained here; name a head with "
            "--draft, or leave out --learn"
        )
    if is_medusa(folder):
        raise _refusal(folder, "Medusa heads have no training code here")
    opened = open_head(folder, target, target_folder)
    config = opened.report.config
    if opened.report.problems or not isinstance(config, HeadConfig):
        raise ConfigError(f"the draft head {folder} is refused: {opened.report.problems[0]}")
    reason = next(_reasons(config), "")
    if reason:
        raise _refusal(folder, reason)
    weights = weights_of(opened)
    ids = target_ids(opened.tensors, config.output)
    spec = HeadSpec(target_folder=target_folder, config=config, ids=ids)
    return TrainableHead(spec=spec, fields=read_fields(folder), tensors=weights)


def _refusal(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"the draft head {folder} cannot be trained on: {reason}; use a head that outrider train "
        "made, or leave out --learn"
    )


def open_trainer(
    head: TrainableHead, recipe: Recipe, rates: LearningRates, device: TrainingDevice
) -> Trainer:
    """A trainer for heads like this one. Refuses one with its own form of the target's tensors."""
    trainer = Trainer(head.spec, recipe, rates, device)
    shared = {EMBEDDING: trainer.target.embedding, HEAD: trainer.target.head}
    for name in shared.keys() & head.tensors.keys() - trainer.weights.keys():
        if not torch.equal(head.tensors[name].to(shared[name]), shared[name]):
            raise ConfigError(
                f"the draft head cannot be trained on: it has its own {name}, and training uses "
                "the target's; use a head that outrider train made, or leave out --learn"
            )
    return trainer


def _reasons(config: HeadConfig) -> Iterator[str]:
    """Why the training form would compute something else."""
    algorithm, layer, aux = config.origin.algorithm, config.layer, config.aux
    if algorithm in _NOT_TRAINED:
        yield f"{_NOT_TRAINED[algorithm]} heads have no training code here"
    if not isinstance(layer.attention, AttentionConfig):
        yield "it has latent attention"
    if min(layer.windows) < WHOLE_TEXT:
        yield "it has sliding windows"
    if layer.biased or aux.has_bias:
        yield "it has biases"
    if not aux.is_projected or aux.aux_layers.final:
        yield "it reads the target's states without a projection of several layers"
    if aux.norm == "joint":
        yield "it normalises all states of the target together (norm_before_fc)"
    if config.width != aux.target_hidden:
        yield f"it is {config.width} wide and the target {aux.target_hidden}"
    if algorithm in LIKE_EAGLE or config.blocks is None:
        yield from _eagle_reasons(config)
    else:
        yield from _block_reasons(config, config.blocks)


def _eagle_reasons(config: HeadConfig) -> Iterator[str]:
    if config.blocks is None and config.num_layers > 1:
        yield f"it has {config.num_layers} layers"
    if config.layer.has_head_norm:
        yield "it normalises queries and keys"


def _block_reasons(config: HeadConfig, blocks: BlockHeadConfig) -> Iterator[str]:
    if not config.layer.has_head_norm:
        yield "it does not normalise queries and keys"
    if config.output.draft_vocab != config.output.vocab:
        yield "it has a draft vocabulary"
    if len(set(blocks.causal_layers)) > 1:
        yield "its layers differ in what a slot reads"
    if blocks.confidence is not None and not blocks.confidence.has_bias:
        yield "its confidence head has no bias"
    if blocks.markov is not None and blocks.markov.is_gated:
        yield "its Markov head is gated"
