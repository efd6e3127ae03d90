"""What a layer writes for later tokens, without its own output: the same as in a whole run."""

import copy
from dataclasses import replace

import pytest
import torch
from support.recurrent import harness_of, prompt, saved_recurrent
from support.tiny import save_tiny

from outrider.models.decoder import stack_layers

FAMILIES = ["llama", "deepseek-v3", "qwen3-next"]  # heads, latents, row state and gates


class Both:
    """Runs a layer, and lets it write to a copy of its storage alone."""

    def __init__(self, attention, differences):
        self._attention = attention
        self._differences = differences

    def __call__(self, x, residual, layer, step):
        before, alone = copy.deepcopy(layer), copy.deepcopy(layer)
        self._attention.write_kv(x.clone(), alone, step)
        out = self._attention(x, residual, layer, step)
        self._differences.append((difference(layer, alone), difference(layer, before)))
        return out


def tensors_of(layer):
    if isinstance(layer, torch.Tensor):
        return [layer]
    return [value for name in layer.__slots__ if torch.is_tensor(value := getattr(layer, name))]


def difference(one, other):
    pairs = zip(tensors_of(one), tensors_of(other), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_layer_writes_alone_what_its_run_writes(tmp_path, family):
    if family == "qwen3-next":
        saved_recurrent(tmp_path, family)
    else:
        save_tiny(family, tmp_path)
    harness, found = harness_of(tmp_path), []
    parts = harness.decoder._parts
    layers = [replace(each, attention=Both(each.attention, found)) for each in parts.layers]
    harness.decoder._stack = stack_layers(layers)
    texts = {row: prompt(8, seed=row) for row in (1, 2)}
    harness.run({}, {row: (0, text[:7]) for row, text in texts.items()})
    harness.run({row: (7, text[7:]) for row, text in texts.items()}, {})
    assert len(found) == 2 * len(layers)
    assert all(alone == 0.0 for alone, _ in found)
    assert all(before > 0.0 for _, before in found)
