"""The time to the first token of an image is measured on a real engine."""

import pytest
import torch

from benchmarks.steps.image_shapes import SHAPES
from benchmarks.steps.time_images import build_engine, time_image


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_a_tiny_model_is_timed_cold_and_cached(name):
    shape = SHAPES[name]
    engine = build_engine(shape, torch.device("cpu"), is_tiny=True)
    edge = 2 * shape.patch
    found = time_image(engine, 4 * edge, 3 * edge, patch=shape.patch, runs=1)
    assert found.num_tokens == 2 * 32 + 4 * 3
    assert min(found.cold_s, found.cached_s, found.text_s) > 0
