"""The backend choices of training: device, dtype, kind of attention, copies, fused optimizer."""

import gc
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from outrider.config.engine_config import EngineConfig
from outrider.config.settings import resolve_settings
from outrider.train.packed_attention import AttentionKind

_MIN_FLEX_HEAD_DIM = 16  # flex attention takes no smaller head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedDevice:
    """The user's choices about the device."""

    device: str
    attention: AttentionKind | None  # None: the kind that suits the device
    is_compiled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDevice:
    """Where and in which form a run computes. The choice does not change what is learnt."""

    device: torch.device
    dtype: torch.dtype  # of activations; the trained weights are float32
    attention: AttentionKind
    is_compiled: bool  # the loss is compiled

    @property
    def has_fused_optimizer(self) -> bool:
        return self.device.type == "cuda"

    def copy(self, values: npt.NDArray[np.generic]) -> torch.Tensor:
        """The values on the device. Copies to a GPU start from pinned memory and do not wait."""
        host = torch.from_numpy(values)
        pinned = host.pin_memory() if self.device.type == "cuda" else host
        return pinned.to(self.device, non_blocking=True)

    def free_memory(self) -> None:
        """Return memory that an earlier model held."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


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
