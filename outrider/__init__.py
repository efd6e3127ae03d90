"""Outrider: an LLM inference engine in which speculation never changes a token."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.errors import OutriderError
    from outrider.frontend.async_llm import AsyncLLM
    from outrider.frontend.llm import LLM
    from outrider.frontend.lora_request import LoRARequest
    from outrider.frontend.outputs import CompletionOutput, RequestOutput
    from outrider.frontend.sampling_params import SamplingParams
    from outrider.frontend.vllm_sampling_params import StructuredOutputsParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "LoRARequest",
    "OutriderError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_LAZY = {
    "LLM": "outrider.frontend.llm",
    "AsyncLLM": "outrider.frontend.async_llm",
    "CompletionOutput": "outrider.frontend.outputs",
    "LoRARequest": "outrider.frontend.lora_request",
    "OutriderError": "outrider.errors",
    "RequestOutput": "outrider.frontend.outputs",
    "SamplingParams": "outrider.frontend.sampling_params",
    "StructuredOutputsParams": "outrider.frontend.vllm_sampling_params",
}


def __getattr__(name: str) -> Any:
    """Load the heavy entry points on first use, so that `import outrider` stays fast."""
    if name not in _LAZY:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
