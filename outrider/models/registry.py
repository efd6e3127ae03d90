"""The supported architectures. They differ by data only and share one decoder."""

from dataclasses import dataclass

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What sets an architecture apart from the plain Llama decoder."""

    name: str
    has_qkv_bias: bool = False
    has_head_norm: bool = False  # queries and keys are normalised per head before rotation


FAMILIES = {
    "LlamaForCausalLM": Family(name="llama"),
    "MistralForCausalLM": Family(name="mistral"),
    "Qwen2ForCausalLM": Family(name="qwen2", has_qkv_bias=True),
    "Qwen3ForCausalLM": Family(name="qwen3", has_head_norm=True),
}


def family_of(architecture: str) -> Family:
    """The family a config.json names in `architectures`."""
    if architecture not in FAMILIES:
        raise ConfigError(
            f"the architecture {architecture} is not supported; use one of {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]
