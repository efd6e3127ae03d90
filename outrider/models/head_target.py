"""What a draft head needs of its target: sizes that it must fit, and weights that it may share."""

from typing import Protocol

import torch

from outrider.models.adapters.adapter_bank import AdapterWeights
from outrider.models.rope_config import RopeConfig


class HeadTargetConfig(Protocol):
    """The sizes of a target, and what the report on a head compares."""

    @property
    def num_layers(self) -> int: ...

    @property
    def hidden(self) -> int:
        """Width of the residual stream, and of an aux hidden state."""
        ...

    @property
    def num_streams(self) -> int:
        """Residual streams of a token. An aux hidden state is their mean."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int: ...

    @property
    def rope(self) -> RopeConfig: ...


class HeadTarget(Protocol):
    """A loaded target."""

    dtype: torch.dtype  # of activations and of the cache

    @property
    def config(self) -> HeadTargetConfig: ...

    @property
    def adapters(self) -> AdapterWeights:
        """The LoRA adapters of its linear layers, by slot."""
        ...

    @property
    def embedding(self) -> torch.Tensor: ...  # [vocab, hidden]

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, vocab]
        """Logits of the whole vocabulary."""
        ...
