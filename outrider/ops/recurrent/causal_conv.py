"""The causal convolution over queries, keys and values of recurrent layers."""

import torch

from outrider.ops.fixed_activations import silu
from outrider.ops.sparse.ring_tokens import RingTokens


def causal_conv(
    tokens: RingTokens,  # of width qkv
    sources: torch.Tensor,  # [num_query, window] int64 the window of each query token
    conv_weight: torch.Tensor,  # [qkv, window] float32
) -> torch.Tensor:  # [num_query, qkv]
    """Every channel summed over the window of each query token, then silu."""
    if tokens.fresh.is_cuda:
        from outrider.ops.recurrent.causal_conv_triton import causal_conv_triton

        return causal_conv_triton(tokens, sources, conv_weight)
    return causal_conv_reference(tokens, sources, conv_weight)


def causal_conv_reference(
    tokens: RingTokens, sources: torch.Tensor, conv_weight: torch.Tensor
) -> torch.Tensor:
    """The same in torch."""
    total = torch.zeros(tokens.fresh.shape, dtype=torch.float32, device=conv_weight.device)
    for place in range(sources.shape[1]):
        source = sources[:, place : place + 1]
        channels = tokens.read(source).squeeze(1).float()
        total.addcmul_(channels.masked_fill_(source < 0, 0.0), conv_weight[:, place])
    return silu(total).to(tokens.fresh.dtype)
