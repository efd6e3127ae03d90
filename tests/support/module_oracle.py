"""Reference draft modules: recompute the whole text, without cache, pages or engine code."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from support.modules import WithModules
from support.reference import gumbel


@dataclass
class Recomputed:
    drafts: list[int]
    kv: torch.Tensor  # [modules, rows, 2 * kv_heads, head_dim] rotated keys, then values; or none


class ModuleOracle:
    """Modules of one target over one row."""

    def __init__(self, made: WithModules, *, num: int):
        self._made = made
        self._rules = made.table.rules
        self._weights = made.weights[:num]
        config = made.target.config
        self._eps, self._heads = config.block.norm_eps, config.attention
        self._theta = config.rope.theta

    def recompute(self, text, sampling=None) -> Recomputed:
        """The drafts of one module per depth after a text, and the KV of all modules."""
        aux_hidden_states = self._aux_hidden_states(text[:-1])
        read, states, drafts, kv = list(text[1:]), aux_hidden_states, [], []
        for index in range(len(self._weights)):
            after, rows = self._run(index, read[index:], states)
            kv.append(rows)
            position = len(text) + index
            drafts.append(self._choose(index, after[-1], position, sampling))
            read.append(drafts[-1])
            states = after if self._rules.is_chained else aux_hidden_states
        return Recomputed(drafts, torch.stack(kv))

    def repeat(self, text, steps) -> list[int]:
        """The drafts of the first module when it is repeated on its own states."""
        read, states, drafts = list(text[1:]), self._aux_hidden_states(text[:-1]), []
        for _ in range(steps):
            last = self._run(0, read, states)[0][-1:]
            drafts.append(self._choose(0, last[0], 0, None))
            read, states = [*read, drafts[-1]], torch.cat([states, last])
        return drafts

    def _aux_hidden_states(self, tokens):
        with torch.no_grad():
            return self._made.theirs.model(torch.tensor([tokens])).last_hidden_state[0]

    def _choose(self, index, state, position, sampling):
        if not self._rules.is_state_normed:
            state = self._rms(state, self._weights[index]["output_norm"])
        head = self._weights[index].get("head", self._made.theirs.lm_head.weight.detach())
        scores = head @ state
        if sampling is not None and sampling.temperature:
            noise = torch.from_numpy(gumbel(sampling.seed, position, len(scores)))
            scores = scores.double() / sampling.temperature + noise
        return int(scores.argmax())

    def _run(self, index, tokens, states):
        """States after every row, and the keys and values of all rows."""
        weights, rules = self._weights[index], self._rules
        table = weights.get("embedding", self._made.theirs.model.embed_tokens.weight.detach())
        embedded = table[torch.tensor(tokens)]
        if rules.is_first_blank:
            embedded = torch.cat([torch.zeros_like(embedded[:1]), embedded[1:]])
        token = self._rms(embedded, weights["token_norm"])
        state = self._rms(states, weights["state_norm"])
        pair = [state, token] if rules.is_state_first else [token, state]
        stream = torch.cat(pair, -1) @ weights["join"].T
        out, kv = self._attend(self._rms(stream, weights["input_layernorm.weight"]), weights)
        stream = stream + out
        z = self._rms(stream, weights["post_attention_layernorm.weight"])
        stream = stream + self._feed(z, weights)
        return (self._rms(stream, weights["output_norm"]) if rules.is_state_normed else stream), kv

    def _feed(self, z, weights):
        if "mlp.gate.weight" not in weights:
            return _swiglu(z, weights, "mlp.")
        experts = self._made.target.config.experts
        share = (z @ weights["mlp.gate.weight"].T).softmax(-1)
        best, chosen = share.topk(experts.routing.top_k, dim=-1)
        if experts.routing.is_normed:
            best = best / best.sum(-1, keepdim=True)
        rows = []
        for row in range(len(z)):
            parts = [
                weight * _swiglu(z[row], weights, f"mlp.experts.{int(expert)}.")
                for weight, expert in zip(best[row], chosen[row], strict=True)
            ]
            rows.append(sum(parts))
        return torch.stack(rows)

    def _attend(self, x, weights):
        length, head_dim = x.shape[0], self._heads.head_dim
        query, key, value = (
            (
                x @ weights[f"self_attn.{name}.weight"].T
                + weights.get(f"self_attn.{name}.bias", torch.zeros(()))
            )
            .view(length, -1, head_dim)
            .transpose(0, 1)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        if "self_attn.q_norm.weight" in weights:
            query = self._rms(query, weights["self_attn.q_norm.weight"])
            key = self._rms(key, weights["self_attn.k_norm.weight"])
        query, key = self._rotate(query), self._rotate(key)
        kv = torch.cat([key, value]).transpose(0, 1)
        repeats = query.shape[0] // key.shape[0]
        key, value = key.repeat_interleave(repeats, 0), value.repeat_interleave(repeats, 0)
        scores = query @ key.transpose(1, 2) * head_dim**-0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        out = scores.masked_fill(future, float("-inf")).softmax(-1) @ value
        flat = out.transpose(0, 1).reshape(length, -1)
        return flat @ weights["self_attn.o_proj.weight"].T, kv

    def _rotate(self, x):  # [heads, length, head_dim]
        half = x.shape[-1] // 2
        speed = self._theta ** (-torch.arange(half) / half)
        angle = torch.arange(x.shape[1])[:, None] * speed
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def _rms(self, x, weight):
        return x * (x.pow(2).mean(-1, keepdim=True) + self._eps).rsqrt() * weight


class TheirModules:
    """The same drafts by the MTP modules of transformers, for targets that it supports."""

    def __init__(self, made: WithModules, *, num: int):
        self._theirs = made.theirs
        made.theirs.config.num_mtp_layers = num
        self._model = MtpModel(made.theirs, num).eval()
        state = {}
        for index, weights in enumerate(made.weights[:num]):
            state |= {f"layers.{index}.{name}": each for name, each in _as_theirs(weights).items()}
        missing = self._model.load_state_dict(state, strict=False)
        assert not missing.unexpected_keys
        assert all(
            name.startswith(("embed_tokens", "shared_head")) for name in missing.missing_keys
        )

    def recompute(self, text, sampling=None) -> Recomputed:
        assert sampling is None or not sampling.temperature
        ids = torch.tensor([text])
        with torch.no_grad():
            states = self._theirs.model(ids[:, :-1]).last_hidden_state
            drafts, *_ = self._model(
                input_ids=ids[:, 1:],
                last_hidden_states=states,
                attention_mask=torch.ones_like(ids[:, 1:]),  # some versions need one
                position_ids=torch.arange(1, len(text))[None],
                mtp_cache=MtpCache(config=self._theirs.config.get_mtp_config()),
            )
        return Recomputed(drafts[0].tolist(), torch.empty(0))


def _as_theirs(weights):
    """A module's tensors under the names of transformers, with stacked experts."""
    own = {"join": "eh_proj", "token_norm": "enorm", "state_norm": "hnorm"}
    own |= {"output_norm": "post_norm"}
    named = {f"{own[name]}.weight": each for name, each in weights.items() if name in own}
    apart = [name for name in weights if ".experts." in name]
    named |= {
        f"mtp_block.{name}": each
        for name, each in weights.items()
        if name not in own and name not in apart
    }
    if apart:
        num = 1 + max(int(name.split(".")[2]) for name in apart)
        gate, up, down = (
            torch.stack([weights[f"mlp.experts.{i}.{part}_proj.weight"] for i in range(num)])
            for part in ("gate", "up", "down")
        )
        named["mtp_block.mlp.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
        named["mtp_block.mlp.experts.down_proj"] = down
    return named


def _swiglu(z, weights, prefix):
    gate, up, down = (weights[f"{prefix}{name}_proj.weight"] for name in ("gate", "up", "down"))
    return (F.silu(z @ gate.T) * (z @ up.T)) @ down.T
