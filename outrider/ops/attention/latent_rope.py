"""Rotation and storage of latent attention: a stored vector is [latent | rotated key]."""

import torch

from outrider.ops.attention.write_kv import write_latents
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.norm_rope.rotary import Rotation, rotate_


def store_latents(
    latents: torch.Tensor,  # [num_query, latent + rope] may be overwritten; unit stride along rope
    rotation: Rotation,
    norm: Norm,  # of the latent
    layer: torch.Tensor,  # [pages, page_size, 1, latent + rope] contiguous
    slots: torch.Tensor,  # [num_query] int64
) -> None:
    """Normalise every latent, rotate the key beside it, and write both to its slot."""
    if latents.is_cuda:
        from outrider.ops.attention.latent_rope_triton import store_latents_triton

        store_latents_triton(latents, rotation, norm, layer, slots)
    else:
        store_latents_reference(latents, rotation, norm, layer, slots)


def store_latents_reference(
    latents: torch.Tensor, rotation: Rotation, norm: Norm, layer: torch.Tensor, slots: torch.Tensor
) -> None:
    width = norm.weight.shape[0]
    latents[:, :width] = norm(latents[:, :width])
    rotate_(latents[:, None, width:], rotation)
    write_latents(layer, slots, latents, width)


def rotate_queries(
    heads: torch.Tensor,  # [num_query, heads, nope + rope], unit stride along the last axis
    rotation: Rotation,
    out: torch.Tensor,  # [num_query, heads, latent + rope] contiguous; last channels written
) -> None:
    """Write the rotated part of every query behind the place of its latent part."""
    if heads.is_cuda:
        from outrider.ops.attention.latent_rope_triton import rotate_queries_triton

        rotate_queries_triton(heads, rotation, out)
    else:
        rotate_queries_reference(heads, rotation, out)


def rotate_queries_reference(heads: torch.Tensor, rotation: Rotation, out: torch.Tensor) -> None:
    rope = rotation.cos.shape[-1]
    rotated = out[..., -rope:]
    rotated.copy_(heads[..., -rope:])
    rotate_(rotated, rotation)
