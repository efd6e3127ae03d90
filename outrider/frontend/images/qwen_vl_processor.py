"""Images of Qwen keep their shape, and become patches in groups that are merged."""

from pathlib import Path
from typing import Any

import numpy as np
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from outrider.frontend.images.image_processor import ProcessedImage, pixels_of


class QwenVLProcessor:
    """Owns the processor of transformers, which resizes and cuts."""

    placeholder = "<|image_pad|>"

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    @classmethod
    def load(cls, folder: Path) -> "QwenVLProcessor":
        return cls(Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True))

    def process(self, image: Any) -> ProcessedImage:
        cut = self._processor(images=[image], do_rescale=False, do_normalize=False)
        rows, columns = (
            edge // self._processor.merge_size for edge in cut["image_grid_thw"][0][1:]
        )
        frames = np.asarray(cut["pixel_values"])  # [patches, 3 * frames * pixels], frames are equal
        parts = frames.reshape(len(frames), 3, self._processor.temporal_patch_size, -1)
        pixels = pixels_of(parts[:, :, 0], (int(rows), int(columns)), has_axes=True)
        return ProcessedImage(self.placeholder * pixels.num_tokens, (pixels,))
