"""Latent attention of draft heads as it is trained: keys and values of every head are computed."""

import torch

from support.heads import LATENT_HEADS, LATENTS


def attend_latents(
    weights: dict[str, torch.Tensor],
    prefix: str,  # of the names
    x: torch.Tensor,  # [queries, in]
    read: torch.Tensor,  # [keys, in] the queries are the last of them
    is_seen: torch.Tensor,  # [queries, keys]
    *,
    theta: float,
    eps: float,
) -> torch.Tensor:  # [queries, width]
    latent, nope, rope, value = LATENTS.values()

    def linear(y, name):
        return y @ weights[f"{prefix}{name}.weight"].T

    def rms(y, name):
        unit = y * (y.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        return unit * weights[f"{prefix}{name}.weight"]

    def rotate(y, first):  # [n, heads, rope] with channels 2i and 2i + 1 as a pair
        speed = theta ** (-torch.arange(rope // 2) / (rope // 2))
        angle = (first + torch.arange(y.shape[0]))[:, None, None] * speed
        a, b = y[..., ::2], y[..., 1::2]
        turned = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
        return torch.stack(turned, -1).flatten(-2)

    first = read.shape[0] - x.shape[0]
    is_low = f"{prefix}q_a_proj.weight" in weights
    low = rms(linear(x, "q_a_proj"), "q_a_layernorm") if is_low else x
    query = linear(low, "q_b_proj" if is_low else "q_proj").view(-1, LATENT_HEADS, nope + rope)
    stored = linear(read, "kv_a_proj_with_mqa")
    heads = linear(rms(stored[:, :latent], "kv_a_layernorm"), "kv_b_proj")
    key, values = heads.view(-1, LATENT_HEADS, nope + value).split([nope, value], -1)
    shared = rotate(stored[:, None, latent:], 0).squeeze(1)
    scores = torch.einsum("qhd,khd->hqk", query[..., :nope], key)
    scores = scores + torch.einsum("qhd,kd->hqk", rotate(query[..., nope:], first), shared)
    scores = (scores * (nope + rope) ** -0.5).masked_fill(~is_seen, float("-inf"))
    return linear(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1), "o_proj")
