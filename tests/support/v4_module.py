"""A tiny DeepSeek-V4 with a draft module, and an oracle made of transformers' own layers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.v4 import C, H, S, tiny_v4

NUM_LAYERS = 3


@dataclass
class ModuleOracle:
    """The target cut off before its last layer, which is the module's; recomputes everything."""

    theirs: Any  # the target, as transformers runs it
    layer: Any
    own: dict[str, torch.Tensor]  # what a module has besides a layer

    def streams(self, tokens: list[int]) -> torch.Tensor:  # [tokens, streams, hidden]
        """The target's streams after its last layer."""
        found = []
        handle = self.theirs.model.layers[-1].register_forward_hook(
            lambda module, args, output: found.append(output[0])
        )
        with torch.inference_mode():
            self.theirs(torch.tensor([tokens]))
        handle.remove()
        return found[0]

    def run(self, tokens: list[int], streams: torch.Tensor) -> torch.Tensor:
        """The module's streams at every row: row i reads streams i and token i, given as such."""
        model, own = self.theirs.model, self.own
        with torch.inference_mode():
            embedded = model.embed_tokens(torch.tensor([tokens]))
            token = _norm(embedded, own["enorm.weight"]) @ own["e_proj.weight"].T
            before = _norm(streams[None], own["hnorm.weight"]) @ own["h_proj.weight"].T
            positions = torch.arange(len(tokens))[None]
            angles = {
                kind: model.rotary_emb(embedded, position_ids=positions, layer_type=kind)
                for kind in ("main", "compress")
            }
            far = positions[0][:, None] - positions[0][None, :]
            hidden = (far < 0) | (far >= self.theirs.config.sliding_window)
            mask = torch.zeros(far.shape).masked_fill(hidden, float("-inf"))[None, None]
            out = self.layer(
                before + token[:, :, None],
                input_ids=torch.tensor([tokens]),
                position_embeddings=angles,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=None,
            )
        return out[0]

    def logits(self, streams: torch.Tensor) -> torch.Tensor:  # [tokens, vocab]
        own, flat = self.own, streams.flatten(1)
        unit = flat * torch.rsqrt(flat.square().mean(1, keepdim=True) + 1e-6)
        mixes = unit @ own["hc_head_fn"].T * own["hc_head_scale"] + own["hc_head_base"]
        one = ((mixes.sigmoid() + 1e-6)[:, :, None] * streams).sum(1)
        return _norm(one, own["norm.weight"]) @ self.theirs.lm_head.weight.T.detach()


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def save_with_module(folder: Path) -> ModuleOracle:
    """A folder whose last layer has become `mtp.0`."""
    model = tiny_v4(
        num_hidden_layers=NUM_LAYERS + 1,
        layer_types=[C, H, S, S],
        mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
        hc_eps=1e-6,
    )
    model.save_pretrained(folder)
    hidden, streams = model.config.hidden_size, model.config.hc_mult
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.35

    own = {
        "enorm.weight": draw(hidden) + 1,
        "hnorm.weight": draw(hidden) + 1,
        "e_proj.weight": draw(hidden, hidden),
        "h_proj.weight": draw(hidden, hidden),
        "norm.weight": draw(hidden) + 1,
        "hc_head_fn": draw(streams, streams * hidden),
        "hc_head_base": draw(streams),
        "hc_head_scale": draw(1),
    }
    path, last = folder / "model.safetensors", f"model.layers.{NUM_LAYERS}."
    tensors = {name.replace(last, "mtp.0."): tensor for name, tensor in load_file(path).items()}
    shared = {"mtp.0.emb.tok_emb.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(tensors | shared | {f"mtp.0.{name}": tensor for name, tensor in own.items()}, path)
    config = json.loads((folder / "config.json").read_text())
    for key in ("layer_types", "mlp_layer_types"):
        config[key] = config[key][:NUM_LAYERS]
    config["num_hidden_layers"] = NUM_LAYERS
    (folder / "config.json").write_text(json.dumps(config))
    layer = model.model.layers[NUM_LAYERS]
    model.model.layers = model.model.layers[:NUM_LAYERS]
    return ModuleOracle(model, layer, own)
