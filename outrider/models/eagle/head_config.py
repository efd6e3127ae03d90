"""What a draft head is, once its dialect has been read. Layers are counted as in `Taps`."""

from dataclasses import dataclass
from typing import Literal

from outrider.models.draft_model import AuxLayers
from outrider.models.model_config import AttentionConfig, BlockConfig, RopeConfig

Algorithm = Literal["eagle", "eagle3"]
Dialect = Literal["SafeAILab", "SGLang", "vLLM", "speculators"]
AuxNorm = Literal["none", "each", "joint"]  # of the tapped states, before they are projected


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose format the head is in, and what it says about itself."""

    algorithm: Algorithm
    dialect: Dialect
    made_for: str  # the target it names, or nothing
    notes: tuple[str, ...]  # where its config had to be interpreted


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxStatesConfig:
    """How the target's states become the state of a draft row."""

    aux_layers: AuxLayers
    target_hidden: int  # width of one tapped state
    norm: AuxNorm
    is_projected: bool  # by `fc`; else the features are the state
    has_bias: bool  # in `fc`

    @property
    def width(self) -> int:
        """Of the features of one query token: the target's end of the head."""
        return self.target_hidden * (len(self.aux_layers.layers) + self.aux_layers.final)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayerConfig:
    """The one decoder layer of a head."""

    block: BlockConfig
    attention: AttentionConfig
    rope: RopeConfig
    biased: tuple[str, ...]  # projections of the attention that have a bias
    has_head_norm: bool  # queries and keys are normalised per head before rotation
    is_residual_normed: bool  # the state joins the residual after its norm, not before


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """How the state after a draft row becomes scores and the state before the next."""

    vocab: int  # of the target
    draft_vocab: int  # tokens the head can propose
    is_state_normed: bool  # the next row gets the state after the final norm, not before


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """Everything a head is built from, besides its weights and the target's."""

    origin: Origin
    aux: AuxStatesConfig
    layer: HeadLayerConfig
    output: OutputConfig
    max_context: int  # positions it was trained for; rotation goes on past them

    @property
    def width(self) -> int:
        """Of the state handed from one draft row to the next."""
        return self.layer.block.hidden
