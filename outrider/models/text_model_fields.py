"""The text model in a folder with more parts: its fields and its tensor names."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from outrider.errors import ConfigError

# Outer fields that apply to the text model. tie_word_embeddings is in both places, and
# transformers uses the outer one.
_OUTSIDE = ("architectures", "tie_word_embeddings", "quantization_config", "compression_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nesting:
    """How a text model is nested in its folder. By default it is not nested.

    A tensor whose name begins with `ours` in our code is stored with the prefix `stored` instead.
    """

    fields: str = ""  # the object in config.json that describes the model
    ours: str = ""
    stored: str = ""
    others: tuple[str, ...] = ()  # prefixes of tensors of parts that are not loaded
    is_optional: bool = False  # fields and tensors may also be stored as of a model of its own

    def as_found(self, stored: Collection[str]) -> "Nesting":
        """The nesting that these stored names have."""
        if self == FLAT and _WITHOUT_PREFIX in stored:
            return _BARE
        if self.is_optional and not any(name.startswith(self.stored) for name in stored):
            return replace(self, ours="", stored="")
        return self

    def our_name(self, stored: str) -> str:
        if not stored.startswith(self.stored):
            return stored
        return self.ours + stored.removeprefix(self.stored)

    def stored_name(self, ours: str) -> str:
        return self.stored + ours.removeprefix(self.ours) if ours.startswith(self.ours) else ours

    def is_stray(self, stored: str) -> bool:
        """Whether a tensor outside the text model has a name that we use inside it."""
        return stored.startswith(self.ours) and not stored.startswith(self.stored)

    def text_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of the text model, as in a config.json of its own."""
        inner = fields.get(self.fields) if self.fields else None
        if not self.fields or (self.is_optional and inner is None):
            return fields
        if not isinstance(inner, dict):
            raise ConfigError(
                f"config.json needs an object {self.fields}, got {inner}; download it again"
            )
        outer = {key: fields[key] for key in _OUTSIDE if fields.get(key) is not None}
        return {**inner, **outer}


FLAT = Nesting()
# Embedding models are saved without an output layer, and then without its neighbour's prefix.
_BARE = Nesting(ours="model.", stored="")
_WITHOUT_PREFIX = "embed_tokens.weight"
