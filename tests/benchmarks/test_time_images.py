"""The time to the first token of an image is measured on a real engine."""

import pytest
import torch

from benchmarks.steps.time_images import build_engine, time_image


@pytest.mark.slow
def test_a_tiny_model_is_timed_cold_and_cached():
    engine = build_engine(torch.device("cpu"), is_tiny=True)
    found = time_image(engine, 112, 84, runs=1)
    assert found.num_tokens == 2 * 32 + 4 * 3
    assert min(found.cold_s, found.cached_s, found.text_s) > 0
