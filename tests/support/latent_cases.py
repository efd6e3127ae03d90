"""The small kernels of latent attention, compared with their references."""

import torch

from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.models.rope_config import RopeConfig
from outrider.models.rope_scaling import NoScaling
from outrider.ops.attention.latent_rope import rotate_queries_reference, store_latents_reference
from outrider.ops.attention.latent_rope_triton import rotate_queries_triton, store_latents_triton
from outrider.ops.linear.head_linear_triton import head_linear_triton
from outrider.ops.norm_rope.rms_norm import RmsNorm
from outrider.ops.norm_rope.rotary import Rotation

PAGE_SIZE = 4


def rotation_at(num_query: int, rope: int, like: torch.Tensor):
    config = RopeConfig(theta=1000.0, scaling=NoScaling())
    where = {"dtype": torch.float32, "device": torch.device("cpu")}
    rotation = RotaryEmbedding(config, head_dim=rope, **where).at(3 * torch.arange(num_query))
    return Rotation(rotation.cos.to(like), rotation.sin.to(like))


def check_stored(num_query: int, latent: int, rope: int, like: torch.Tensor, atol: float) -> None:
    """Latents as the reference writes them in float32; slots without a token stay as they were."""
    torch.manual_seed(num_query)
    wide = torch.randn(num_query, latent + rope + 5).to(like)
    norm = RmsNorm(torch.randn(latent).to(like), 1e-6)
    rotation = rotation_at(num_query, rope, like)
    slots = torch.randperm(num_query + PAGE_SIZE)[:num_query].to(like.device)
    shape = (num_query // PAGE_SIZE + 2, PAGE_SIZE, 1, latent + rope)
    layer, right = (torch.full(shape, 7.0).to(like) for _ in range(2))
    rows = wide[:, 5:]
    store_latents_triton(rows, rotation, norm, layer, slots)
    exact = right.float().cpu()
    store_latents_reference(
        rows.float().cpu(),
        Rotation(rotation.cos.float().cpu(), rotation.sin.float().cpu()),
        RmsNorm(norm.weight.float().cpu(), norm.eps),
        exact,
        slots.cpu(),
    )
    torch.testing.assert_close(layer.float().cpu(), exact, atol=atol, rtol=atol)


def check_rotated(num_query: int, heads: int, like: torch.Tensor, atol: float) -> None:
    """The rotated part of queries as the reference has it; the other part is not touched."""
    torch.manual_seed(heads)
    nope, rope, latent = 12, 16, 24
    wide = torch.randn(num_query, heads * (nope + rope) + 8).to(like)
    queries = wide[:, 8:].view(num_query, heads, nope + rope)
    rotation = rotation_at(num_query, rope, like)
    out = torch.full((num_query, heads, latent + rope), 7.0).to(like)
    rotate_queries_triton(queries, rotation, out)
    right = torch.zeros(num_query, heads, latent + rope)
    rotate_queries_reference(
        queries.float().cpu(),
        Rotation(rotation.cos.float().cpu(), rotation.sin.float().cpu()),
        right,
    )
    torch.testing.assert_close(
        out[..., latent:].float().cpu(), right[..., latent:], atol=atol, rtol=atol
    )
    assert (out[..., :latent] == 7.0).all()


def check_head_linear(
    num_query: int, heads: int, sizes: tuple[int, int], like: torch.Tensor, atol: float
) -> None:
    """Both layouts of stored weights, into a slice of wider rows."""
    torch.manual_seed(num_query)
    width, size = sizes
    x = torch.randn(num_query, heads, width + 3).to(like)[..., :width]
    for weights in (
        torch.randn(heads, width, size).to(like),
        torch.randn(heads, size, width).to(like).transpose(1, 2),
    ):
        out = torch.full((num_query, heads, size + 2), 7.0).to(like)
        head_linear_triton(x, weights, out[..., :size])
        right = torch.einsum("nhi,hio->nho", x.double(), weights.double())
        scale = width**0.5
        torch.testing.assert_close(
            out[..., :size].double() / scale, right / scale, atol=atol, rtol=atol
        )
        assert (out[..., size:] == 7.0).all()
