"""Opens a small model to be widened, and builds the wide one on the device from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.steps.body import Body
from benchmarks.widen.fit_body import Fit, fit
from benchmarks.widen.places import Noise
from benchmarks.widen.widened_head import SmallHead, open_small_head, widen_head
from benchmarks.widen.widened_tensors import WideTensors
from outrider.config.engine_config import Arithmetic
from outrider.errors import ConfigError
from outrider.models.decoder import Decoder
from outrider.models.decoder_check import check_tensors
from outrider.models.decoder_loader import build_decoder
from outrider.models.draft_model import AnyDraftModel
from outrider.models.eagle.head_loader import build_head
from outrider.models.model_config import ModelConfig, read_config
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.tensor_source import TensorSource
from outrider.ops.linear.choose_linear import WeightType, computed_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModels:
    """A small model with readable tensors, its heads, and how it fits."""

    fit: Fit
    source: TensorSource
    heads: tuple[SmallHead, ...]


@contextmanager
def opened(folder: Path, body: Body, heads: tuple[Path, ...]) -> Iterator[OpenedModels]:
    """The model in a folder, once it and its heads are known to fit into the body."""
    small = read_config(folder)
    if not isinstance(body.config, ModelConfig):
        raise ConfigError(f"no model widens to {body.name}; use llama-8b")
    found = fit(small, body.config, name=body.name)
    opened_heads = tuple(open_small_head(head, found, folder) for head in heads)
    with Checkpoint(folder, small.family.nesting) as checkpoint:
        check_tensors(checkpoint, small)
        yield OpenedModels(fit=found, source=checkpoint, heads=opened_heads)


def build_wide(
    small: OpenedModels, *, dtype: WeightType, device: torch.device, arithmetic: Arithmetic = "fast"
) -> Decoder:
    """The wide model; the peak is the model and one tensor."""
    tensors = WideTensors(small.fit, small.source, _noise(dtype, device))
    return build_decoder(small.fit.wide, tensors, dtype=dtype, device=device, arithmetic=arithmetic)


def build_wide_heads(
    small: OpenedModels, target: Decoder, *, dtype: WeightType, arithmetic: Arithmetic = "fast"
) -> tuple[AnyDraftModel, ...]:
    """The heads in the width of the wide target."""
    device = target.embedding.device
    wide = (
        widen_head(head, small.fit, small.source, _noise(dtype, device)) for head in small.heads
    )
    return tuple(
        build_head(
            head.config, head.tensors, target, dtype=dtype, device=device, arithmetic=arithmetic
        )
        for head in wide
    )


def _noise(dtype: WeightType, device: torch.device) -> Noise:
    """Noise in the type that the builders use, so that they need not convert."""
    return Noise(computed_dtype(dtype, device), device)
