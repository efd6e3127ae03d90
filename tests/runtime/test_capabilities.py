"""What an attention backend cannot do is refused at start, not met in a step."""

from dataclasses import replace

import pytest
import torch
from support.engines import Shape, engine_of
from support.tiny import save_tiny

from outrider.errors import ConfigError
from outrider.kv.reference_attention import ReferenceAttention
from outrider.models.decoder_loader import load_decoder


@pytest.mark.parametrize(
    ("lacking", "shape", "fix"),
    [
        ({"page_sizes": range(1, 4)}, Shape(page_size=4), "pages of 4"),
        ({"max_nodes": 0}, Shape(), "lower --nodes"),
        ({"needs_host_lengths": True}, Shape(depth=1), "use depth 0"),
    ],
)
def test_a_setting_beyond_the_backend_is_refused(monkeypatch, tmp_path, lacking, shape, fix):
    save_tiny("llama", tmp_path)
    model = load_decoder(tmp_path, dtype="float32", device=torch.device("cpu"))
    engine_of(model, shape)  # the backend as it is can do it
    full = ReferenceAttention.capabilities.fget
    monkeypatch.setattr(
        ReferenceAttention, "capabilities", property(lambda self: replace(full(self), **lacking))
    )
    with pytest.raises(ConfigError, match=fix):
        engine_of(model, shape)


def test_latents_wider_than_the_backend_takes_are_refused(monkeypatch, tmp_path):
    save_tiny("deepseek-v3", tmp_path)
    model = load_decoder(tmp_path, dtype="float32", device=torch.device("cpu"))
    full = ReferenceAttention.capabilities.fget
    narrow = property(lambda self: replace(full(self), max_latent=16))
    monkeypatch.setattr(ReferenceAttention, "capabilities", narrow)
    with pytest.raises(ConfigError, match=r"latents of up to 16 channels, and the model has 24"):
        engine_of(model, Shape())
