"""Refuses a folder whose tensors are not exactly those of its config.json."""

from outrider.models.decoder_tensors import HEAD, tensor_shapes
from outrider.models.expert_tensors import are_stacked
from outrider.models.model_config import ModelConfig
from outrider.models.safetensors_reader import Checkpoint


def check_tensors(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the decoder's tensors. Refuses a folder whose tensors differ.

    Tensors of draft modules are not checked here; `find_modules` checks them.
    """
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
