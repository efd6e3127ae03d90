"""The structure of a draft head, independent of its dialect. Layers count as in `AuxLayers`."""

from dataclasses import dataclass
from typing import Literal

from outrider.models.block_model import DraftBlock
from outrider.models.draft_model import AuxLayers
from outrider.models.model_config import AnyAttention, AttentionConfig, BlockConfig
from outrider.models.rope_config import RopeConfig

Algorithm = Literal["eagle", "eagle3", "peagle", "dflash", "dflash2", "dspark"]
Dialect = Literal["SafeAILab", "SGLang", "vLLM", "speculators", "z-lab", "DeepSpec", "SpecForge"]
AuxNorm = Literal["none", "each", "joint"]  # of the aux states, before `fc`


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The format of a head, and what its config says about its origin."""

    algorithm: Algorithm
    dialect: Dialect
    made_for: str  # the target that it names, or ""
    notes: tuple[str, ...]  # choices that its config left open


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxStatesConfig:
    """How aux_hidden_states of the target become the state of a draft row."""

    aux_layers: AuxLayers
    target_hidden: int  # width of one aux state
    norm: AuxNorm
    is_projected: bool  # by `fc`; else the aux states are the state
    has_bias: bool  # in `fc`

    @property
    def width(self) -> int:
        """Width of the concatenated aux states of one query token."""
        return self.target_hidden * (len(self.aux_layers.layers) + self.aux_layers.final)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayerConfig:
    """The decoder layers of a head."""

    block: BlockConfig
    attention: AnyAttention
    rope: RopeConfig
    windows: tuple[int, ...]  # the sliding window of each layer, or WHOLE_TEXT
    biased: tuple[str, ...]  # attention projections with a bias
    has_head_norm: bool  # queries and keys are normalised per head before rotation
    is_residual_normed: bool  # the residual is the normalised state, not the state

    @property
    def plain_attention(self) -> AttentionConfig:
        """The attention of a head with keys and values."""
        assert isinstance(self.attention, AttentionConfig), "refused for heads with latents"
        return self.attention


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """How the output of a draft row becomes logits and the state of the next row."""

    vocab: int  # of the target
    draft_vocab: int  # tokens that the head can propose
    is_state_normed: bool  # the next row reads the state after the final norm


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovConfig:
    """What the token before adds to the logits of a slot (DSpark)."""

    rank: int
    is_gated: bool  # the slot's state scales the token's vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceConfig:
    """How a head estimates the chance of its drafts (DSpark)."""

    reads_token: bool  # the Markov vector of the token before, besides the slot's state
    has_bias: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """How slots that are near each other agree (DFlash2)."""

    taps: int  # slots that a convolution reads
    group: int  # channels that share what a kernel has of its slot
    rank: int  # of what the token before adds to the logits
    num_candidates: int  # best tokens of a slot that are drafted at all
    embedding_scale: float  # of slots
    logit_scale: float  # of slots alone, before the token before adds to them
    logit_cap: float  # likewise, after the scale; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeadConfig:
    """What a head that drafts a block in one pass has besides."""

    block: DraftBlock
    causal_layers: tuple[bool, ...]  # layers in which a slot reads no later slots
    usual_drafts: int  # unless sizes are given
    has_mask_vector: bool  # the head stores what a mask is embedded as; else a token's embedding
    markov: MarkovConfig | None
    confidence: ConfidenceConfig | None
    local: LocalConfig | None = None  # only DFlash2 has it


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """The structure of a head, without weights."""

    origin: Origin
    aux: AuxStatesConfig
    layer: HeadLayerConfig
    output: OutputConfig
    max_context: int  # positions it was trained for; it can run beyond them
    blocks: BlockHeadConfig | None = None  # EAGLE drafts token by token

    @property
    def width(self) -> int:
        """Width of the state that one draft row passes to the next."""
        return self.layer.block.hidden

    @property
    def num_layers(self) -> int:
        return len(self.layer.windows)

    @property
    def later_norms(self) -> tuple[str, ...]:
        """Norms that layers after the first may store. Their input passes the first of these.

        SGLang's layers of EAGLE-3 have two norms and apply the one that their first layer applies
        to states. The layers of all other projects are plain ones.
        """
        both = ("input_layernorm", "hidden_norm")
        if self.origin.algorithm != "eagle3":
            return both[:1]
        return both[::-1] if self.origin.dialect == "SGLang" else both
