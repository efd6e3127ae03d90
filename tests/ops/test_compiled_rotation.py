"""Angles of positions by compiled functions against plain torch."""

import torch
from support.torch_threads import torch_threads

from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.models.rope_config import RopeConfig
from outrider.models.rope_scaling import NoScaling, YarnScaling
from outrider.ops.norm_rope.rotary import is_rotation_compiled, rotation_at, rotation_at_reference

POSITIONS = torch.cat([torch.arange(70), torch.tensor([4095, 131_071, 1_000_000])])
YARN = YarnScaling(
    factor=4.0, original_context=64, beta_fast=32.0, beta_slow=1.0, attention_factor=1.3
)


def rotary(scaling, *, share=1.0, dtype=torch.float32):
    config = RopeConfig(theta=10000.0, scaling=scaling, share=share)
    return RotaryEmbedding(config, head_dim=24, dtype=dtype, device=torch.device("cpu"))


def test_compiled_angles_are_those_of_torch():
    for each in (rotary(NoScaling()), rotary(YARN), rotary(YARN, share=0.5)):
        frequencies = each.frequencies
        assert is_rotation_compiled(frequencies)
        found = rotation_at(POSITIONS, frequencies)
        expected = rotation_at_reference(POSITIONS, frequencies)
        for ours, theirs in ((found.cos, expected.cos), (found.sin, expected.sin)):
            assert ours.shape == theirs.shape == (len(POSITIONS), 1, 24)
            assert (ours - theirs).abs().max() < 3e-7


def test_an_angle_does_not_depend_on_other_positions_or_threads():
    frequencies = rotary(NoScaling()).frequencies
    alone = torch.cat([rotation_at(one[None], frequencies).sin for one in POSITIONS])
    for threads in (1, 3):
        with torch_threads(threads):
            assert torch.equal(rotation_at(POSITIONS, frequencies).sin, alone)


def test_angles_of_another_type_are_computed_by_torch():
    assert not is_rotation_compiled(rotary(NoScaling(), dtype=torch.bfloat16).frequencies)
