"""A reference draft head: recomputes the whole row, without cache, pages or engine code."""

import torch
import torch.nn.functional as F

from support.heads import LAYER
from support.latent_oracle import attend_latents

EPS = 1e-5  # of the heads that write_head writes


class Oracle:
    """One head over one whole row."""

    def __init__(self, model, variant, tensors):
        self._model = model
        self._variant = variant
        self._weights = tensors

    def aux_hidden_states(self, tokens):
        """The states of the target that the head reads, at every position."""
        model, variant = self._model.model, self._variant
        stream = model.embed_tokens(torch.tensor([tokens]))
        streams = [stream]
        rotation = model.rotary_emb(stream, torch.arange(len(tokens))[None])
        future = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)
        for block in model.layers:
            mask = future[None, None]
            stream = block(stream, attention_mask=mask, position_embeddings=rotation)
            streams.append(stream)
        if variant.algorithm == "eagle" or not variant.uses_aux:
            return model.norm(stream)[0]
        captured = variant.layers or (2, 1, 0)  # the usual ones of a target of three layers
        return torch.cat([streams[layer][0] for layer in captured], -1)

    def project(self, aux_hidden_states):
        variant, weights = self._variant, self._weights
        if variant.algorithm == "eagle" or not variant.uses_aux:
            return aux_hidden_states
        if variant.norm_before_fc:
            aux_hidden_states = self.rms(aux_hidden_states, "input_norm")
        if variant.fc_norm:
            width = weights["fc_norm.0.weight"].shape[0]
            parts = aux_hidden_states.split(width, -1)
            aux_hidden_states = torch.cat(
                [self.rms(part, f"fc_norm.{i}") for i, part in enumerate(parts)], -1
            )
        return aux_hidden_states @ weights["fc.weight"].T

    def forward(self, tokens, states):
        """States after all rows, from the states before them."""
        variant, weights = self._variant, self._weights
        table = weights.get("embed_tokens.weight", self._model.model.embed_tokens.weight)
        embedded = table[torch.tensor(tokens)]
        if variant.algorithm == "eagle":
            x = torch.cat([embedded, states], -1) @ weights["fc.weight"].T
            x = residual = x + weights.get("fc.bias", 0.0)
        else:
            normed = self.rms(states, LAYER + "hidden_norm")
            x = torch.cat([self.rms(embedded, LAYER + "input_layernorm"), normed], -1)
            residual = normed if variant.norm_before_residual else states
        y = self._run_layer(LAYER, x, residual)
        for index in range(1, variant.num_layers):
            y = self.run_plain(index, y, variant.later_norm)
        return self.rms(y, "norm") if variant.norm_output else y

    def run_plain(self, index, stream, norm="input_layernorm"):
        """The stream after a plain decoder layer."""
        prefix = f"layers.{index}."
        return self._run_layer(prefix, self.rms(stream, prefix + norm), stream)

    def _run_layer(self, prefix, x, residual):
        y = residual + self._attend(prefix, x)
        z = self.rms(y, prefix + "post_attention_layernorm")
        gate, up = (self._linear(z, f"{prefix}mlp.{name}_proj") for name in ("gate", "up"))
        return y + self._linear(F.silu(gate) * up, prefix + "mlp.down_proj")

    def logits(self, states):
        if self._variant.algorithm == "eagle3" and not self._variant.norm_output:
            states = self.rms(states, "norm")
        head = self._weights.get("lm_head.weight", self._model.lm_head.weight)
        return states @ head.T

    def chain(self, tokens, steps, target_ids):
        """The greedy drafts after a text whose states are all the target's."""
        read, states = list(tokens[1:]), self.project(self.aux_hidden_states(tokens[:-1]))
        drafts = []
        for _ in range(steps):
            last = self.forward(read, states)[-1:]
            drafts.append(int(target_ids[self.logits(last)[0].argmax()]))
            read, states = [*read, drafts[-1]], torch.cat([states, last])
        return drafts

    def _attend(self, prefix, x):
        if self._variant.has_latents:
            is_seen, theta = (
                torch.ones(len(x), len(x), dtype=torch.bool).tril(),
                self._variant.theta,
            )
            name = prefix + "self_attn."
            return attend_latents(self._weights, name, x, x, is_seen, theta=theta, eps=EPS)
        length, head_dim = x.shape[0], self._variant.head_dim
        query, key, value = (
            self._linear(x, f"{prefix}self_attn.{name}").view(length, -1, head_dim).transpose(0, 1)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        if self._variant.head_norm:
            query = self.rms(query, prefix + "self_attn.q_norm")
            key = self.rms(key, prefix + "self_attn.k_norm")
        query, key = self._rotate(query), self._rotate(key)
        repeats = query.shape[0] // key.shape[0]
        key, value = key.repeat_interleave(repeats, 0), value.repeat_interleave(repeats, 0)
        scores = query @ key.transpose(1, 2) * head_dim**-0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        out = scores.masked_fill(future, float("-inf")).softmax(-1) @ value
        return self._linear(out.transpose(0, 1).reshape(length, -1), prefix + "self_attn.o_proj")

    def _rotate(self, x):  # [heads, length, head_dim]
        half = x.shape[-1] // 2
        speed = self._variant.theta ** (-torch.arange(half) / half)
        angle = torch.arange(x.shape[1])[:, None] * speed
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def _linear(self, x, name):
        weights = self._weights
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def rms(self, x, name):
        return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * self._weights[f"{name}.weight"]
