"""Idefics3 and SmolVLM: an image becomes tiles of one size, row by row, and a small whole."""

from pathlib import Path
from typing import Any

from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from outrider.errors import ConfigError
from outrider.frontend.images.image_processor import ProcessedImage, pixels_of
from outrider.hub.vision_config import VisionConfig

_AROUND = "<fake_token_around_image>"
_WHOLE = "<global-img>"


class Idefics3Processor:
    """Owns the processor of transformers, which resizes and cuts."""

    placeholder = "<image>"

    def __init__(self, processor: Any, vision: VisionConfig) -> None:
        self._processor = processor
        self._grid = vision.grid

    @classmethod
    def load(cls, folder: Path, vision: VisionConfig) -> "Idefics3Processor":
        processor = Idefics3ImageProcessorPil.from_pretrained(folder, local_files_only=True)
        tile = processor.max_image_size["longest_edge"]
        if tile != vision.tile:
            raise ConfigError(
                f"{folder}: preprocessor_config.json cuts tiles of {tile} pixels and the vision "
                f"tower reads {vision.tile}; use the files of one model"
            )
        return cls(processor, vision)

    def process(self, image: Any) -> ProcessedImage:
        cut = self._processor(
            images=[image],
            return_row_col_info=True,
            do_rescale=False,
            do_normalize=False,
            do_pad=False,  # there is nothing beside it to pad to
        )
        tiles = tuple(pixels_of(each, self._grid) for each in cut["pixel_values"][0])
        return ProcessedImage(self._text(cut["rows"][0][0], cut["cols"][0][0]), tiles)

    def _text(self, rows: int, columns: int) -> str:
        tokens = self.placeholder * (self._grid[0] * self._grid[1])
        whole = f"{_AROUND}{_WHOLE}{tokens}{_AROUND}"
        if not rows and not columns:
            return whole
        lines = [
            "".join(f"{_AROUND}<row_{row}_col_{column}>{tokens}" for column in _from_one(columns))
            for row in _from_one(rows)
        ]
        return "\n".join([*lines, "", whole])


def _from_one(count: int) -> range:
    return range(1, count + 1)
