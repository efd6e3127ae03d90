"""Embeddings that a user gives in place of a prompt: what they may be, and what they become."""

import math
import sys
from typing import TYPE_CHECKING, Any

from outrider.errors import RequestError
from outrider.frontend.sampling_params import SamplingParams
from outrider.wire.embedded_span import EmbeddedSpan

if TYPE_CHECKING:
    import numpy as np


def read_embeds(given: Any) -> EmbeddedSpan:
    """A tensor or an array [tokens, hidden] of floating point numbers, at the begin of a prompt."""
    import numpy as np  # `--help` imports this module

    try:
        # A tensor on a GPU, of bfloat16 or with a gradient is not an array; numpy has its own form.
        array = np.asarray(given.detach().cpu().float() if _is_tensor(given) else given)
    except (TypeError, ValueError) as error:
        raise RequestError(f"prompt_embeds must be a tensor or an array; {error}") from error
    return span_of(array)


def span_of(array: "np.ndarray") -> EmbeddedSpan:
    """The embeddings of an array, which is checked."""
    if array.ndim != 2 or array.dtype.kind != "f" or not array.size:
        raise RequestError(
            f"prompt_embeds must be [tokens, hidden] of floating point numbers, got "
            f"{list(array.shape)} of {array.dtype}"
        )
    values = array.astype("<f4")
    if not math.isfinite(float(values.sum(dtype="f8"))):
        raise RequestError("prompt_embeds must be finite: it has NaN or infinity, or overflows")
    return EmbeddedSpan(first=0, width=array.shape[1], values=values.tobytes())


def check_embeds_params(params: SamplingParams) -> None:
    """Refuse what needs the tokens of a prompt."""
    if params.prompt_logprobs is not None:
        raise RequestError(
            "embeddings and images have no prompt_logprobs; leave them out, or send token ids"
        )
    if params.truncate_prompt_tokens is not None:
        raise RequestError(
            "prompts with prompt_embeds or images are not truncated; send fewer of them"
        )


def _is_tensor(given: Any) -> bool:
    """Whether this is a tensor. The front end does not import torch: a user with tensors has."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)
