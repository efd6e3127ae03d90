"""What an attention backend cannot do is refused at start, not met in a step."""

from dataclasses import replace

import pytest
import torch
from support.engines import Shape, engine_of
from support.tiny import save_tiny

from outrider.errors import ConfigError
from outrider.kv.per_layer_attention import PerLayerAttention
from outrider.kv.reference_attention import ReferenceAttention
from outrider.models.decoder_loader import load_decoder
from outrider.models.standalone_draft import StandaloneDraft
from outrider.runtime.draft_kinds import ModelDraft
from outrider.wire.draft_budget import Budget


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


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("depth", [0, 1])
def test_lengths_that_the_host_does_not_know_are_refused_in_the_role_that_needs_them(
    monkeypatch, tmp_path, role, depth
):
    save_tiny("llama", tmp_path)
    model = load_decoder(tmp_path, dtype="float32", device=torch.device("cpu"))
    full = PerLayerAttention.capabilities.fget
    needing = property(lambda self: replace(full(self), needs_host_lengths=True))
    monkeypatch.setattr(PerLayerAttention, "capabilities", needing)
    own = {"attention" if role == "target" else "draft_attention": "per_layer"}
    twin = StandaloneDraft(model, target_vocab=model.config.vocab_size)
    draft = ModelDraft(model=twin, budget=Budget(steps=2, topk=1, nodes=3))
    if not depth:
        engine_of(model, Shape(depth=depth, **own), draft)
        return
    with pytest.raises(ConfigError, match=f"backend of the {role} needs the lengths"):
        engine_of(model, Shape(depth=depth, **own), draft)


def test_latents_wider_than_the_backend_takes_are_refused(monkeypatch, tmp_path):
    save_tiny("deepseek-v3", tmp_path)
    model = load_decoder(tmp_path, dtype="float32", device=torch.device("cpu"))
    full = ReferenceAttention.capabilities.fget
    narrow = property(lambda self: replace(full(self), max_latent=16))
    monkeypatch.setattr(ReferenceAttention, "capabilities", narrow)
    with pytest.raises(ConfigError, match=r"latents of up to 16 channels, and the model has 24"):
        engine_of(model, Shape())
