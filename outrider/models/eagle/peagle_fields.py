"""The fields of a config.json that make an EAGLE-3 head a P-EAGLE head."""

from typing import Any

from outrider.config.draft_config import MAX_NODES
from outrider.models.block_model import DraftBlock
from outrider.models.config_fields import read_list, read_object, read_size_or
from outrider.models.eagle.head_config import BlockHeadConfig, Dialect
from outrider.models.eagle.head_fields import names_a_mask, read_architectures, read_mask_token
from outrider.models.head_target import HeadTargetConfig
from outrider.models.model_config import ModelConfig

SPECULATIVE_TOKENS = "speculative_tokens"
_SPECULATORS = "peagle"
_ARCHITECTURES: dict[str, Dialect] = {
    "PEagleDraftModel": "SpecForge",
    "PeagleLlamaForCausalLM": "vLLM",
}
_EAGLE3: dict[str, Dialect] = {  # with a token for masks
    "LlamaForCausalLMEagle3": "SGLang",
    "Eagle3LlamaForCausalLM": "vLLM",
}
_USUAL_DRAFTS = 7  # the best length of the first published heads, which were trained for 8


def is_peagle_config(fields: dict[str, Any]) -> bool:
    """Whether a config.json is that of a P-EAGLE head."""
    return _dialects(fields) != ()


def peagle_dialect(fields: dict[str, Any]) -> Dialect:
    """Which project wrote the config.json of a P-EAGLE head."""
    return _dialects(fields)[0]


def usual_drafts(fields: dict[str, Any]) -> int:
    """How deep such a head drafts unless sizes are given. Only speculators and we write it down."""
    methods = read_list(read_object(fields, "speculators_config"), "proposal_methods")
    first = methods[0] if methods and isinstance(methods[0], dict) else {}
    ours = read_size_or(fields, SPECULATIVE_TOKENS, _USUAL_DRAFTS)
    return min(read_size_or(first, SPECULATIVE_TOKENS, ours), MAX_NODES - 1)


def peagle_blocks(
    fields: dict[str, Any], plain: ModelConfig, target: HeadTargetConfig
) -> BlockHeadConfig:
    """What such a head has besides an EAGLE-3 head. It takes any number of masks."""
    return BlockHeadConfig(
        block=DraftBlock(
            size=MAX_NODES - 1,
            first=0,
            is_causal=True,
            mask_token=read_mask_token(fields, target.vocab_size),
            lookahead=1,
            reads_state=True,
        ),
        causal_layers=(True,) * plain.num_layers,
        usual_drafts=usual_drafts(fields),
        has_mask_vector=False,
        markov=None,
        confidence=None,
    )


def _dialects(fields: dict[str, Any]) -> tuple[Dialect, ...]:
    if fields.get("speculators_model_type") == _SPECULATORS:
        return ("speculators",)
    named = read_architectures(fields)
    found = tuple(_ARCHITECTURES[name] for name in named if name in _ARCHITECTURES)
    marked = names_a_mask(fields) or fields.get("parallel_drafting") is True
    return found or tuple(_EAGLE3[name] for name in named if name in _EAGLE3 and marked)
