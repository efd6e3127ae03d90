"""The text that stands for an image, and how many tokens of it the real models have."""

import json

import pytest
from support.tiny_vision import make_tiny_vision
from transformers import Idefics3Processor as TheirProcessor

from outrider.errors import ConfigError
from outrider.frontend.images.image_processor import load_processor
from outrider.hub.vision_config import NO_VISION, read_vision


def test_tiles_are_spelled_as_by_transformers(tmp_path):
    tiny = make_tiny_vision(tmp_path)
    own = load_processor(tmp_path, read_vision(tmp_path))
    for rows, columns in ((0, 0), (1, 2), (3, 1)):
        cut = {"rows": [[rows]], "cols": [[columns]]}
        wanted = TheirProcessor.replace_image_token(tiny.processor, cut, 0)
        assert own._text(rows, columns) == wanted


def written(folder, **fields):
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize(
    ("tile", "patch", "scale", "edge"), [(512, 16, 4, 8), (384, 14, 3, 9), (364, 14, 2, 13)]
)
def test_a_tile_has_as_many_tokens_as_in_published_models(tmp_path, tile, patch, scale, edge):
    """SmolVLM-256M and 500M, SmolVLM-2.2B, Idefics3-8B."""
    fields = {"architectures": ["Idefics3ForConditionalGeneration"], "image_token_id": 5}
    vision = {"image_size": tile, "patch_size": patch}
    folder = written(tmp_path, **fields, scale_factor=scale, vision_config=vision)
    assert read_vision(folder).grid == (edge, edge)
    with pytest.raises(ConfigError, match="vision part"):
        read_vision(written(tmp_path, **fields, scale_factor=scale))


def test_other_models_have_no_vision(tmp_path):
    assert read_vision(tmp_path) == NO_VISION
    assert read_vision(written(tmp_path, architectures=["LlamaForCausalLM"])) == NO_VISION
