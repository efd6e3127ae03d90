"""Where a text model lies in a folder that holds more: among the fields, and among the tensors."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError

# What counts for the text model though it stands beside its fields. Whether the head is tied is
# said in both places, and transformers goes by the outer one.
_OUTSIDE = ("architectures", "tie_word_embeddings", "quantization_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nesting:
    """What is nested and how; by default nothing is.

    Tensors that we call `ours`* are stored as `stored`*; all other names stay.
    """

    fields: str = ""  # the object in config.json that describes the model
    ours: str = ""
    stored: str = ""
    others: tuple[str, ...] = ()  # prefixes of tensors that belong to parts that are not loaded
    is_optional: bool = False  # the tensors may as well have our names

    def as_found(self, stored: Iterable[str]) -> "Nesting":
        """What holds for tensors of these names."""
        if self.is_optional and not any(name.startswith(self.stored) for name in stored):
            return FLAT
        return self

    def our_name(self, stored: str) -> str:
        if not stored.startswith(self.stored):
            return stored
        return self.ours + stored.removeprefix(self.stored)

    def stored_name(self, ours: str) -> str:
        return self.stored + ours.removeprefix(self.ours) if ours.startswith(self.ours) else ours

    def is_stray(self, stored: str) -> bool:
        """Whether a tensor outside is called what we call one inside."""
        return stored.startswith(self.ours) and not stored.startswith(self.stored)

    def text_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of the text model, as if it were alone."""
        if not self.fields:
            return fields
        inner = fields.get(self.fields)
        if not isinstance(inner, dict):
            raise ConfigError(
                f"config.json needs an object {self.fields}, got {inner}; download it again"
            )
        outer = {key: fields[key] for key in _OUTSIDE if fields.get(key) is not None}
        return {**inner, **outer}


FLAT = Nesting()
