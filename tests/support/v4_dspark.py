"""A tiny DeepSeek-V4 with a DSpark drafter, and an oracle made of transformers' own layers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.block_reference import BlockReference
from support.v4 import C, H, S, tiny_v4

NUM_LAYERS, NUM_STAGES, SIZE, MASK, RANK = 3, 2, 4, 3, 6
READ = (1, 3)  # after so many layers; the config names their indices
LAST = f"mtp.{NUM_STAGES - 1}."


@dataclass
class DSparkOracle(BlockReference):
    """The target cut off before its last layers, which are the drafter's; recomputes everything."""

    theirs: Any  # the target, as transformers runs it
    layers: Any
    own: dict[str, torch.Tensor]  # what the drafter has besides layers, by stored name

    def marginal(self, states: torch.Tensor, depth: int) -> torch.Tensor:  # [vocab]
        return _norm(states[depth], self.own[LAST + "norm.weight"]) @ self.theirs.lm_head.weight.T

    def bias(self, states: torch.Tensor, depth: int, before: int) -> torch.Tensor:  # [vocab]
        del states, depth
        vector = self.own[LAST + "markov_head.markov_w1.weight"][before]
        return self.own[LAST + "markov_head.markov_w2.weight"] @ vector

    def run_block(self, tokens: list[int]) -> torch.Tensor:  # [slots, hidden] not normalised
        """The block that begins with the last token. Its context are the tokens before."""
        model, num = self.theirs.model, len(tokens) - 1
        context = self._context(tokens[:-1])
        with torch.inference_mode():
            ids = torch.tensor([[*tokens[:-1], tokens[-1], *[MASK] * (SIZE - 1)]])
            embedded = model.embed_tokens(ids)
            streams = embedded[:, :, None].repeat(1, 1, self.theirs.config.hc_mult, 1)
            for layer in self.layers:
                streams = self._run_layer(layer, streams, ids, context)
        return self._mix(streams[0, num:])

    def _run_layer(self, layer, streams, ids, context):
        """The layer over context and block. The attention reads the context in place of rows."""
        model, num, length = self.theirs.model, context.shape[0], ids.shape[1]

        def read_context(module, args, kwargs):
            (x,) = args
            return (torch.cat([context[None], x[:, num:]], dim=1),), kwargs

        hook = layer.self_attn.register_forward_pre_hook(read_context, with_kwargs=True)
        positions = torch.arange(length)
        angles = {
            kind: model.rotary_emb(streams[:, :, 0], position_ids=positions[None], layer_type=kind)
            for kind in ("main", "compress")
        }
        is_seen = torch.eye(length, dtype=torch.bool)
        is_seen[num:] = positions >= num - self.theirs.config.sliding_window
        out = layer(
            streams,
            input_ids=ids,
            position_embeddings=angles,
            position_ids=positions[None],
            attention_mask=torch.zeros(length, length).masked_fill(~is_seen, float("-inf"))[
                None, None
            ],
            past_key_values=None,
        )
        hook.remove()
        return out

    def _context(self, tokens: list[int]) -> torch.Tensor:  # [tokens, hidden]
        """What the drafter reads of the target: the mean of its streams after some layers."""
        found = []
        hooks = [
            layer.register_forward_hook(lambda module, args, output: found.append(output[0]))
            for layer in self.theirs.model.layers
        ]
        with torch.inference_mode():
            self.theirs(torch.tensor([tokens]))
            aux = torch.cat([found[k - 1].mean(1) for k in READ], dim=1)
            context = _norm(aux @ self.own["mtp.0.main_proj.weight"].T, self._main_norm)
        for hook in hooks:
            hook.remove()
        return context

    @property
    def _main_norm(self) -> torch.Tensor:
        return self.own["mtp.0.main_norm.weight"]

    def _mix(self, streams: torch.Tensor) -> torch.Tensor:  # [slots, streams, hidden]
        own, flat = self.own, streams.flatten(1)
        unit = flat * torch.rsqrt(flat.square().mean(1, keepdim=True) + 1e-6)
        mixes = unit @ own[LAST + "hc_head_fn"].T * own[LAST + "hc_head_scale"]
        shares = (mixes + own[LAST + "hc_head_base"]).sigmoid() + 1e-6
        return (shares[:, :, None] * streams).sum(1)


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def save_with_dspark(folder: Path, **sizes) -> DSparkOracle:
    """A folder whose last layers have become `mtp.0` and so on."""
    model = tiny_v4(
        num_hidden_layers=NUM_LAYERS + NUM_STAGES,
        layer_types=[C, H, S] + [S] * NUM_STAGES,
        mlp_layer_types=["hash_moe", "moe", "moe"] + ["moe"] * NUM_STAGES,
        hc_eps=1e-6,
        **sizes,
    )
    model.save_pretrained(folder)
    own = _own_tensors(model.config)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for stage in range(NUM_STAGES):
        layer = f"model.layers.{NUM_LAYERS + stage}."
        tensors = {name.replace(layer, f"mtp.{stage}."): each for name, each in tensors.items()}
    save_file(tensors | own, path)
    config = json.loads((folder / "config.json").read_text())
    for key in ("layer_types", "mlp_layer_types"):
        config[key] = config[key][:NUM_LAYERS]
    config |= {
        "num_hidden_layers": NUM_LAYERS,
        "num_nextn_predict_layers": 1,  # as published; there is no such module
        "n_mtp_layers": NUM_STAGES,
        "dspark_block_size": SIZE,
        "dspark_noise_token_id": MASK,
        "dspark_target_layer_ids": [k - 1 for k in READ],
        "dspark_markov_rank": RANK,
    }
    (folder / "config.json").write_text(json.dumps(config))
    layers = model.model.layers[NUM_LAYERS:]
    model.model.layers = model.model.layers[:NUM_LAYERS]
    return DSparkOracle(model, layers, own)


def _own_tensors(config) -> dict[str, torch.Tensor]:
    hidden, streams, vocab = config.hidden_size, config.hc_mult, config.vocab_size
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.35

    return {
        "mtp.0.main_proj.weight": draw(hidden, hidden * len(READ)),
        "mtp.0.main_norm.weight": draw(hidden) + 1,
        LAST + "norm.weight": draw(hidden) + 1,
        LAST + "hc_head_fn": draw(streams, streams * hidden),
        LAST + "hc_head_base": draw(streams),
        LAST + "hc_head_scale": draw(1),
        LAST + "markov_head.markov_w1.weight": draw(vocab, RANK),
        LAST + "markov_head.markov_w2.weight": draw(vocab, RANK),
        LAST + "confidence_head.proj.weight": draw(1, hidden + RANK),
    }
