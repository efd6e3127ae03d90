"""The type in which sampling reads logits."""

import torch


def widen_logits(logits: torch.Tensor) -> torch.Tensor:  # [n, vocab] both
    """Float32 on a CPU; on CUDA as they are: the kernels that read logits convert them."""
    return logits if logits.is_cuda else logits.float()
