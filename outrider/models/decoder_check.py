"""Refuses a folder whose tensors are not exactly those of its config.json."""

from pathlib import Path

from outrider.errors import ConfigError
from outrider.models.decoder_tensors import HEAD, tensor_shapes
from outrider.models.expert_tensors import are_stacked
from outrider.models.model_config import FP8_BLOCKS, ModelConfig
from outrider.models.safetensors_reader import Checkpoint

_BLOCK_SCALE = "weight_scale_inv"


def check_tensors(
    folder: Path, checkpoint: Checkpoint, config: ModelConfig
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the decoder's tensors. Refuses a folder whose tensors differ.

    Tensors of draft modules are not checked here; `find_modules` checks them.
    """
    if any(name.endswith(_BLOCK_SCALE) for name in checkpoint.names):
        raise ConfigError(f"{folder}: {FP8_BLOCKS}")
    own = own_names(checkpoint, config)
    shapes = tensor_shapes(config, are_experts_stacked=are_stacked(own))
    checkpoint.check(shapes, ignored=_ignored(config), among=lambda name: name in own)
    return shapes


def own_names(checkpoint: Checkpoint, config: ModelConfig) -> set[str]:
    """Names of stored tensors without draft modules, which may store experts in another form."""
    owns = config.family.modules.owns
    return {name for name in checkpoint.names if not owns(name, config.num_layers)}


def _ignored(config: ModelConfig) -> tuple[str, ...]:
    """Redundant tensors that may be stored: rotary frequencies, and the head if it is tied."""
    return ("rotary_emb.inv_freq", *((HEAD,) if config.is_tied else ()))
