"""What the runtime needs of a vision tower, and which tower a model folder holds."""

from pathlib import Path
from typing import Protocol

import torch

from outrider.config.install_hint import install_hint
from outrider.errors import ConfigError
from outrider.hub.vision_config import read_vision
from outrider.wire.image_span import ImagePixels


class VisionTower(Protocol):
    """Computes embeddings of one image, or of one tile, at a time.

    So the bits of an embedding depend on its image alone, not on what else is in a step.
    """

    @property
    def reads_images(self) -> bool:
        """Whether there is a tower at all."""
        ...

    @property
    def num_deepstack(self) -> int:
        """Layers of the decoder after which an image is added to its hidden states."""
        ...

    def encode(self, pixels: ImagePixels) -> torch.Tensor:  # [tokens, (1 + deepstack) * hidden]
        """In the order of their positions in the prompt, on the tower's device.

        Of each token the input of the first layer, then what is added after the first layers.
        """
        ...

    def dummy_run(self) -> None:
        """Encode the largest image, so that the allocator holds the memory that it takes."""
        ...


class NoTower:
    """For models that read text only: the front end refuses images for them."""

    reads_images = False
    num_deepstack = 0

    def encode(self, pixels: ImagePixels) -> torch.Tensor:
        raise AssertionError(f"there is no vision tower for {pixels}")

    def dummy_run(self) -> None:
        pass


NO_TOWER = NoTower()


def load_tower(folder: Path, *, dtype: torch.dtype, device: torch.device) -> VisionTower:
    """The vision tower in a folder, if the model has one. Its tensors must match config.json."""
    kind = read_vision(folder).kind
    if kind == "none":
        return NO_TOWER
    try:
        # All import transformers.
        if kind == "idefics3":
            from outrider.models.vision.idefics3_tower import load_idefics3

            return load_idefics3(folder, dtype=dtype, device=device)
        from outrider.models.vision.qwen_vl_tower import load_qwen_vl

        return load_qwen_vl(folder, kind, dtype=dtype, device=device)
    except ImportError as error:
        raise ConfigError(
            f"the vision tower needs transformers ({error}): {install_hint('vision')}"
        ) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{folder}: transformers cannot build the vision tower of its config.json ({reason}); "
            "download the folder again"
        ) from error
