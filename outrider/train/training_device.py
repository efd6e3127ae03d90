"""The backend choices of training: device, dtype, kind of attention, copies, fused optimizer."""

import functools
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from outrider.config.engine_config import EngineConfig
from outrider.config.settings import resolve_settings
from outrider.train.packed_attention import AttentionKind
from outrider.train.paused_ops import BetweenOps

Compute = TypeVar("Compute", bound=Callable[..., object])

_MIN_FLEX_HEAD_DIM = 16  # flex attention takes no smaller head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedDevice:
    """The user's choices about the device."""

    device: str
    attention: AttentionKind | None  # None: the kind that suits the device
    is_compiled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortStep:
    """The size of a step of training beside a server."""

    batch: int  # sequences
    length: int  # tokens of a sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDevice:
    """Where and in which form a run computes. The choice does not change what is learnt."""

    device: torch.device
    dtype: torch.dtype  # of activations; the trained weights are float32
    attention: AttentionKind
    is_compiled: bool  # so are the loss and all of a layer but its attention

    @property
    def short_step(self) -> ShortStep:
        """A step that ends soon: it may have to end before a request is computed at full speed."""
        if self.device.type == "cuda":
            return ShortStep(batch=4, length=1024)
        return ShortStep(batch=1, length=256)

    @property
    def has_fused_optimizer(self) -> bool:
        return self.device.type == "cuda"

    def copy(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        """The values on the device. Copies to a GPU start from pinned memory and do not wait."""
        host = torch.from_numpy(values)
        pinned = host.pin_memory() if self.device.type == "cuda" else host
        return pinned.to(self.device, non_blocking=True)

    def fused(self, function: Compute, *, is_ragged: bool = False) -> Compute:
        """The function, compiled if the run is. `is_ragged`: sizes change from call to call.

        Eager operations pass every intermediate result through memory. Over a vocabulary that takes
        longer than the products.
        """
        return compiled(function, is_ragged) if self.is_compiled else function

    def pausing(self, pause: Callable[[], None]) -> AbstractContextManager[object]:
        """Call a function before every operation that a CPU computes.

        On a GPU operations are only queued, so waiting between them would not end a step sooner.
        """
        return BetweenOps(pause) if self.device.type == "cpu" else nullcontext()

    def free_memory(self) -> None:
        """Return memory that an earlier model held."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


@functools.cache
def compiled(function: Compute, is_ragged: bool) -> Compute:
    """The function, compiled once per process: a run with a time budget has two trainers."""
    return cast("Compute", torch.compile(function, dynamic=is_ragged))


def choose_training_device(requested: RequestedDevice, *, head_dim: int) -> TrainingDevice:
    """The device of a run, with the dtype and the attention that suit it."""
    settings = resolve_settings(
        EngineConfig(device=requested.device),
        model_context=1,
        num_cuda=torch.cuda.device_count(),
    )
    is_cuda = settings.device != "cpu"
    usual: AttentionKind = "flex" if is_cuda and head_dim >= _MIN_FLEX_HEAD_DIM else "dense"
    return TrainingDevice(
        device=torch.device(settings.device),
        dtype=torch.bfloat16 if is_cuda else torch.float32,
        attention=requested.attention or usual,
        is_compiled=requested.is_compiled,
    )
