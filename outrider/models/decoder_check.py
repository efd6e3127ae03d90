"""Refuses a folder whose tensors are not exactly those of its config.json."""

from dataclasses import replace

from outrider.config.engine_config import Quantization
from outrider.errors import ConfigError
from outrider.models.decoder_tensors import HEAD, tensor_shapes
from outrider.models.expert_config import ExpertsConfig
from outrider.models.expert_tensors import STACKED_DOWN, are_stacked, sizes_of
from outrider.models.family import ExpertFamily
from outrider.models.model_config import ModelConfig
from outrider.models.quantised.expert_stacks import StackAxes
from outrider.models.safetensors_reader import Checkpoint


def check_tensors(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the decoder's tensors. Refuses a folder whose tensors differ.

    Tensors of draft modules are not checked here; `find_modules` checks them.
    """
    own, config = own_names(checkpoint, config), as_stored(checkpoint, config)
    shapes = tensor_shapes(config, are_experts_stacked=are_stacked(own))
    checkpoint.check(shapes, ignored=_ignored(config), among=lambda name: name in own)
    return shapes


def as_stored(checkpoint: Checkpoint, config: ModelConfig) -> ModelConfig:
    """The config with what the tensors decide, in families where they do.

    That is the axes of the tensors of all experts, and whether there is an output layer.
    """
    if config.family.is_tied_unless_stored:
        config = replace(config, is_tied=HEAD not in checkpoint.names)
    experts, family = config.experts, config.family.experts
    if not isinstance(experts, ExpertsConfig) or not isinstance(family, ExpertFamily):
        return config
    stored = sorted(name for name in checkpoint.names if name.endswith(STACKED_DOWN))
    if family.stacked_axes != "either" or not stored:
        return config
    is_plain = checkpoint.shape(stored[0]) == sizes_of(experts, config.block.hidden).down
    found = replace(family, stacked_axes="out, in" if is_plain else "in, out")
    return replace(config, family=replace(config.family, experts=found))


def quantise_projections(
    checkpoint: Checkpoint, config: ModelConfig, quantization: Quantization
) -> None:
    """Read projections that are stored as floats in codes, if `quantization` asks for it."""
    family = config.family.experts
    if not isinstance(family, ExpertFamily):
        checkpoint.quantise(quantization, StackAxes(is_transposed=False))
        return
    stacked = sorted(name for name in checkpoint.names if name.endswith(STACKED_DOWN))
    if quantization != "none" and stacked and family.names.block != family.names.stacked:
        raise ConfigError(
            f"{stacked[0]} has all experts of a layer, which --quantization {quantization} does "
            f"not quantise for {config.family.name}; leave it out"
        )
    is_transposed = family.has_pairs or family.stacked_axes != "out, in"
    axes = StackAxes(is_transposed=is_transposed, has_pairs=family.has_pairs)
    checkpoint.quantise(quantization, axes)


def own_names(checkpoint: Checkpoint, config: ModelConfig) -> set[str]:
    """Names of stored tensors without draft modules, which may store experts in another form."""
    owns = config.family.modules.owns
    return {name for name in checkpoint.names if not owns(name, config.num_layers)}


def _ignored(config: ModelConfig) -> tuple[str, ...]:
    """Redundant tensors that may be stored: rotary frequencies, and the head if it is tied."""
    return ("rotary_emb.inv_freq", *((HEAD,) if config.is_tied else ()))
