"""Tiny random block-parallel heads in the formats of all projects, and what they should draft."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from support.block_reference import BlockReference
from support.head_oracle import Oracle
from support.heads import LATENTS, Variant, latent_shapes
from support.latent_oracle import attend_latents

BLOCK_DIALECTS = ("z-lab", "DeepSpec", "SpecForge", "speculators")
HEADS, KV_HEADS, HEAD_DIM, WIDE, EPS, THETA, MASK = 4, 2, 8, 40, 1e-6, 10000.0, 3


@dataclass(frozen=True, kw_only=True)
class BlockVariant:
    """What a head computes, in any dialect."""

    layers: tuple[int, ...] = (1, 2)  # captured after this many layers
    num_layers: int = 2
    size: int = 5
    is_next: bool = False  # a slot predicts the next token, not its own
    is_causal: bool = False
    windows: tuple[int, ...] = ()  # of each layer, 0 for none; slots are causal where there is one
    markov_rank: int = 0
    is_gated: bool = False
    has_confidence: bool = False
    reads_token: bool = False
    has_mask_vector: bool = False
    draft_vocab: int = 0  # tokens that it can propose, with its own lm_head; 0: all
    taps: int = 0  # of DFlash2's convolutions; 0: it is not DFlash2
    group: int = 4
    num_candidates: int = 6
    embedding_scale: float = 1.0  # of DFlash2, and the next two
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    has_latents: bool = False  # latent attention (MLA)
    query_rank: int = 0  # of heads with latents; 0: whole queries

    @property
    def first(self) -> int:
        return 0 if self.is_next else 1

    @property
    def num_drafts(self) -> int:
        return self.size - self.first

    def window(self, layer: int) -> int:
        """The sliding window of a layer; 0 for none."""
        return self.windows[layer] if self.windows else 0


BLOCKS = {
    "dflash": BlockVariant(),
    "mixed": BlockVariant(windows=(5, 0)),
    "dflash2": BlockVariant(taps=2, markov_rank=5),
    "dspark": BlockVariant(is_next=True, markov_rank=6, has_confidence=True, reads_token=True),
}


def write_block_head(
    folder: Path, target, variant: BlockVariant, *, dialect: str = "z-lab", seed: int = 0
) -> dict[str, torch.Tensor]:
    """A head for the target; its weights by canonical name. Equal seeds give equal weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = _tensors(target, variant, seed)
    vector = tensors.get("mask_embedding")
    if vector is not None:
        torch.save({"embedding": vector, "mask_token_id": MASK}, folder / "mask_embedding.pt")
    stored = {name: each for name, each in tensors.items() if name != "mask_embedding"}
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_fields(target, variant, dialect)))
    return tensors


def _tensors(target, variant: BlockVariant, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.rand(shape, generator=generator) + 0.5
        if "norm" in name
        else torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        for name, shape in _shapes(target, variant).items()
    }
    if variant.draft_vocab:
        vocab = target.vocab_size
        ids = torch.randperm(vocab, generator=generator)[: variant.draft_vocab].sort().values
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def _shapes(target, variant: BlockVariant) -> dict[str, tuple[int, ...]]:
    width, vocab = target.hidden, target.vocab_size
    query, key, rank = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, variant.markov_rank
    attention = {
        "self_attn.q_norm": (HEAD_DIM,),
        "self_attn.k_norm": (HEAD_DIM,),
        "self_attn.q_proj": (query, width),
        "self_attn.k_proj": (key, width),
        "self_attn.v_proj": (key, width),
        "self_attn.o_proj": (width, query),
    }
    if variant.has_latents:
        attention = latent_shapes(width, width, variant.query_rank)
    layer = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        **{f"{name}.weight": shape for name, shape in attention.items()},
        "mlp.gate_proj.weight": (WIDE, width),
        "mlp.up_proj.weight": (WIDE, width),
        "mlp.down_proj.weight": (width, WIDE),
    }
    shapes = {
        f"layers.{index}.{name}": shape
        for index in range(variant.num_layers)
        for name, shape in layer.items()
    }
    shapes |= {"fc.weight": (width, len(variant.layers) * width)}
    shapes |= {"hidden_norm.weight": (width,), "norm.weight": (width,)}
    if variant.taps:
        return shapes | _local_shapes(variant, width, vocab)
    if variant.draft_vocab:
        shapes["lm_head.weight"] = (variant.draft_vocab, width)
    if rank:
        shapes["markov_head.markov_w1.weight"] = (vocab, rank)
        shapes["markov_head.markov_w2.weight"] = (variant.draft_vocab or vocab, rank)
    if variant.is_gated:
        shapes["markov_head.gate_proj.weight"] = (rank, width + rank)
        shapes["markov_head.gate_proj.bias"] = (rank,)
    if variant.has_confidence:
        shapes["confidence_head.proj.weight"] = (1, width + rank * variant.reads_token)
        shapes["confidence_head.proj.bias"] = (1,)
    if variant.has_mask_vector:
        shapes["mask_embedding"] = (width,)
    return shapes


def _local_shapes(variant: BlockVariant, width: int, vocab: int) -> dict[str, tuple[int, ...]]:
    rank, taps = variant.markov_rank, variant.taps
    shapes: dict[str, tuple[int, ...]] = {
        "candidate_selector.predecessor_codebook": (vocab, rank),
        "candidate_selector.successor_codebook": (vocab, rank),
        "candidate_selector.hidden_projection.weight": (rank, width),
    }
    for index in range(variant.num_layers):
        for part in ("attention", "mlp"):
            name = f"layers.{index}.{part}_conv."
            shapes[name + "base_kernel"] = (2, taps, width)
            kernels = 2 * taps * width // variant.group
            shapes[name + "kernel_projection.weight"] = (kernels, width)
    return shapes


def _fields(target, variant: BlockVariant, dialect: str) -> dict[str, Any]:
    layer = {
        "model_type": "qwen3",
        "num_hidden_layers": variant.num_layers,
        "hidden_size": target.hidden,
        "intermediate_size": WIDE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": EPS,
        "vocab_size": target.vocab_size,
        "rope_theta": THETA,
        "max_position_embeddings": target.max_context,
        "attention_bias": False,
        "hidden_act": "silu",
        "sliding_window": max(variant.windows, default=0) or None,
        "use_sliding_window": bool(variant.windows),
        "layer_types": [
            "sliding_attention" if variant.window(layer) else "full_attention"
            for layer in range(variant.num_layers)
        ],
    }
    if variant.has_latents:
        layer |= LATENTS | {"q_lora_rank": variant.query_rank or None, "num_key_value_heads": HEADS}
    own: dict[str, Any] = {
        "draft_vocab_size": variant.draft_vocab or None,
        "block_size": variant.size,
        "mask_token_id": None if variant.has_mask_vector else MASK,
        "markov_rank": variant.markov_rank,
        "markov_head_type": "gated" if variant.is_gated else "vanilla",
        "enable_confidence_head": variant.has_confidence,
        "confidence_head_with_markov": variant.reads_token,
    }
    named = {"target_layer_ids": [layer - 1 for layer in variant.layers]}
    causal = {"causal": True} if variant.is_causal else {}
    if variant.taps:
        own = {"block_size": variant.size, "mask_token_id": MASK}
        own |= {"conv_kernel_size": variant.taps, "conv_group_size": variant.group}
        own |= {"selector_rank": variant.markov_rank, "selector_top_k": variant.num_candidates}
        if variant.logit_scale != 1.0:
            own |= {"input_embedding_scale": variant.embedding_scale}
            own |= {"output_multiplier": variant.logit_scale}
            own |= {"final_logit_softcapping": variant.logit_cap}
        nested = own | named | causal
        return layer | {"architectures": ["DFlash2DraftModel"], "dflash_config": nested}
    if dialect == "z-lab":
        nested = own | named | causal
        nested |= {"sample_from_anchor": True} if variant.is_next else {}
        return layer | {"architectures": ["DFlashDraftModel"], "dflash_config": nested}
    if dialect == "DeepSpec":
        own |= {"is_causal": True} if variant.is_causal else {}
        own |= {} if variant.is_next else {"sample_from_anchor": False}
        return layer | own | named | {"architectures": ["Qwen3DSparkModel"]}
    if dialect == "SpecForge":
        nested = own | named | causal | {"projector_type": "dspark"}
        nested |= {} if variant.is_next else {"sample_from_anchor": False}
        return layer | {"architectures": ["DSparkDraftModel"], "dflash_config": nested}
    return {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "transformer_layer_config": layer,
        "aux_hidden_state_layer_ids": list(variant.layers),
        "sample_from_anchor": variant.is_next,
        **({"is_causal": True} if variant.is_causal else {}),
        **own,
    }


class BlockOracle(BlockReference):
    """One head over one whole row: recomputes everything, without cache, pages or engine code."""

    def __init__(self, model, variant: BlockVariant, tensors: dict[str, torch.Tensor]) -> None:
        self._model = model
        self._variant = variant
        self._weights = tensors
        self._states = Oracle(model, Variant(layers=variant.layers), {})

    def slot_logits(self, tokens: list[int], depth: int, before: int) -> torch.Tensor:  # [vocab]
        """Logits of the draft at a depth, which counts from 0, after the token before it."""
        states = self.run_block(tokens)
        return self.marginal(states, depth) + self.bias(states, depth, before)

    def marginal(self, states: torch.Tensor, depth: int) -> torch.Tensor:  # [draft_vocab]
        head = self._weights.get("lm_head.weight", self._model.lm_head.weight)
        logits = states[self._variant.first + depth] @ head.T
        logits = logits * self._variant.logit_scale
        if cap := self._variant.logit_cap:
            logits = (logits / cap).tanh() * cap
        if self._variant.taps:
            lowest = logits.sort().values[-self._variant.num_candidates]
            logits = logits.masked_fill(logits < lowest, float("-inf"))
        return logits

    def bias(self, states: torch.Tensor, depth: int, before: int) -> torch.Tensor:
        weights, state = self._weights, states[self._variant.first + depth]
        if not self._variant.markov_rank:
            return torch.zeros(())
        if self._variant.taps:
            selector = "candidate_selector."
            scale = weights[selector + "hidden_projection.weight"] @ state
            vector = weights[selector + "predecessor_codebook"][before] * scale
            return weights[selector + "successor_codebook"] @ vector
        vector = weights["markov_head.markov_w1.weight"][before]
        if self._variant.is_gated:
            read = torch.cat([state, vector])
            gate = weights["markov_head.gate_proj.weight"] @ read
            vector = vector * (gate + weights["markov_head.gate_proj.bias"]).sigmoid()
        return weights["markov_head.markov_w2.weight"] @ vector

    def log_chance(self, states: torch.Tensor, depth: int, before: int) -> float | None:
        if not self._variant.has_confidence:
            return None
        read = states[self._variant.first + depth]
        if self._variant.reads_token:
            read = torch.cat([read, self._weights["markov_head.markov_w1.weight"][before]])
        logit = self._weights["confidence_head.proj.weight"][0] @ read
        return float(F.logsigmoid(logit + self._weights["confidence_head.proj.bias"][0]))

    def target_ids(self, vocab: int) -> list[int]:
        offsets = self._weights.get("d2t", torch.zeros(vocab, dtype=torch.int64))
        return (torch.arange(vocab) + offsets).tolist()

    def run_block(self, tokens: list[int]) -> torch.Tensor:  # [size, width]
        """The states of all slots of the block that begins with the last token."""
        table = self._model.model.embed_tokens.weight
        aux = self._states.aux_hidden_states(tokens[:-1])
        context = self._rms(aux @ self._weights["fc.weight"].T, "hidden_norm")
        mask = self._weights.get("mask_embedding", table[MASK])
        stream = torch.cat([table[tokens[-1:]], mask.expand(self._variant.size - 1, -1)])
        stream = stream * self._variant.embedding_scale
        for index in range(self._variant.num_layers):
            prefix = f"layers.{index}."
            normed = self._rms(stream, prefix + "input_layernorm")
            own = self._convolve(prefix + "attention", 0, normed, normed)
            out = self._attend(index, context, own)
            stream = stream + self._convolve(prefix + "attention", 1, normed, out)
            normed = self._rms(stream, prefix + "post_attention_layernorm")
            own = self._convolve(prefix + "mlp", 0, normed, normed)
            out = self._feed(prefix + "mlp.", own)
            stream = stream + self._convolve(prefix + "mlp", 1, normed, out)
        return self._rms(stream, "norm")

    def _feed(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        weights = self._weights
        gate, up = (x @ weights[f"{prefix}{name}_proj.weight"].T for name in ("gate", "up"))
        return (F.silu(gate) * up) @ weights[prefix + "down_proj.weight"].T

    def _convolve(
        self, name: str, side: int, normed: torch.Tensor, x: torch.Tensor
    ) -> torch.Tensor:  # [size, width]
        """Channel by channel, slot by slot, tap by tap."""
        variant = self._variant
        if not variant.taps:
            return x
        base = self._weights[name + "_conv.base_kernel"][side]
        own = normed @ self._weights[name + "_conv.kernel_projection.weight"].T
        own = own.view(x.shape[0], 2, variant.taps, -1)[:, side]  # [size, taps, groups]
        channels = torch.arange(x.shape[1])
        out = torch.zeros_like(x)
        for slot in range(x.shape[0]):
            for tap in range(min(slot + 1, variant.taps)):
                kernel = base[tap] + own[slot, tap, channels // variant.group]
                out[slot] += kernel * x[slot - tap]
        return out

    def _attend(self, layer: int, context: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        weights, both = self._weights, torch.cat([context, slots])
        prefix, window = f"layers.{layer}.self_attn.", self._variant.window(layer)
        start, size = context.shape[0], slots.shape[0]
        if self._variant.has_latents:
            is_seen = torch.ones(size, start + size, dtype=torch.bool)
            is_seen = is_seen.tril(start) if self._variant.is_causal else is_seen
            return attend_latents(weights, prefix, slots, both, is_seen, theta=THETA, eps=EPS)

        def heads(x, name):
            return (x @ weights[f"{prefix}{name}_proj.weight"].T).view(x.shape[0], -1, HEAD_DIM)

        query = self._rotate(self._rms(heads(slots, "q"), prefix + "q_norm"), start)
        key = self._rotate(self._rms(heads(both, "k"), prefix + "k_norm"), 0)
        value = heads(both, "v")
        key, value = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) * HEAD_DIM**-0.5
        if window:
            is_old = torch.ones(size, start + size, dtype=torch.bool).tril(start - window)
            scores = scores.masked_fill(is_old, float("-inf"))
        if self._variant.is_causal or window:
            later = torch.ones(size, size, dtype=torch.bool).triu(1)
            scores[:, :, start:] = scores[:, :, start:].masked_fill(later, float("-inf"))
        out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value)
        return out.flatten(1) @ weights[f"{prefix}o_proj.weight"].T

    def _rotate(self, x: torch.Tensor, start: int) -> torch.Tensor:  # [length, heads, head_dim]
        half = HEAD_DIM // 2
        speed = THETA ** (-torch.arange(half) / half)
        angle = (start + torch.arange(x.shape[0]))[:, None, None] * speed
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def _rms(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * self._weights[f"{name}.weight"]
