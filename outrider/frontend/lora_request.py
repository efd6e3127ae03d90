"""Which adapter a call of `LLM` runs through. Names and shapes are vLLM's."""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import RequestError
from outrider.hub.adapter_folder import find_adapter
from outrider.wire.adapter import NO_ADAPTER, Adapter


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """A LoRA adapter. The path decides: equal paths are one adapter, whatever name or id."""

    lora_name: str
    lora_int_id: int
    lora_path: str  # a PEFT folder

    def __post_init__(self) -> None:
        if not isinstance(self.lora_int_id, int) or self.lora_int_id < 1:
            raise RequestError(f"lora_int_id must be at least 1, got {self.lora_int_id!r}")
        if not self.lora_name or not self.lora_path:
            raise RequestError("a LoRARequest needs a lora_name and a lora_path")


def adapter_of(request: LoRARequest | None) -> Adapter:
    """The adapter of a request, as its files are now."""
    return NO_ADAPTER if request is None else find_adapter(request.lora_path)


def adapters_of_each(
    requests: LoRARequest | Sequence[LoRARequest | None] | None, num_prompts: int
) -> list[Adapter]:
    """The adapter of each prompt."""
    if requests is None or isinstance(requests, LoRARequest):
        return [adapter_of(requests)] * num_prompts
    if len(requests) != num_prompts:
        raise RequestError(
            f"{len(requests)} LoRA requests for {num_prompts} prompts; give one, or one for each"
        )
    return [adapter_of(each) for each in requests]
