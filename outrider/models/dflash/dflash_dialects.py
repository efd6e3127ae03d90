"""Reads the config.json of a block-parallel head: DFlash and DSpark, in four dialects.

Fields lie at the top level in some dialects, in `dflash_config` or `dspark_config` in others.
"""

from collections.abc import Collection
from typing import Any

from outrider.errors import ConfigError
from outrider.models.block_model import DraftBlock
from outrider.models.config_fields import (
    read_list,
    read_object,
    read_real_or,
    read_size,
    read_size_or,
)
from outrider.models.dflash.dflash_tensors import CONFIDENCE, MASK_VECTOR
from outrider.models.draft_model import AuxLayers
from outrider.models.eagle.head_config import (
    Algorithm,
    AuxStatesConfig,
    BlockHeadConfig,
    ConfidenceConfig,
    Dialect,
    HeadConfig,
    LocalConfig,
    MarkovConfig,
    Origin,
    OutputConfig,
)
from outrider.models.eagle.head_fields import (
    dense_layers,
    layer_config,
    made_for,
    read_architectures,
    read_mask_token,
)
from outrider.models.head_target import HeadTargetConfig
from outrider.ops.attention.attention_rule import WHOLE_TEXT

_ARCHITECTURES: dict[str, tuple[Dialect, Algorithm]] = {
    "DFlashDraftModel": ("z-lab", "dflash"),
    "DFlash2DraftModel": ("z-lab", "dflash2"),
    "Qwen3DSparkModel": ("DeepSpec", "dspark"),
    "DSparkDraftModel": ("SpecForge", "dspark"),
    "DFlashSpeculator": ("speculators", "dflash"),
    "DSparkSpeculator": ("speculators", "dspark"),
    "DeepseekDFlashDraftModel": ("SpecForge", "dflash"),
    "K3DSparkModel": ("vLLM", "dspark"),
}
_NOT_YET = ("DominoDraftModel",)
_SPECULATORS: tuple[Algorithm, ...] = ("dflash", "dspark")
_MOST_SLOTS = 64  # the slots that a slot reads are one 64-bit mask
# Fields that change what a head computes, and the values that mean nothing special.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "projector_type": (None, "dflash", "dspark"),
    "draft_shift": (None, 0, False),
    "dspark_bonus_anchor": (None, False),
}
# The same for fields that only DFlash2 heads have.
_NEUTRAL_BUT_FOR_DFLASH2: dict[str, tuple[object, ...]] = {
    "input_embedding_scale": (None, 1, 1.0),
    "output_multiplier": (None, 1, 1.0),
    "final_logit_softcapping": (None,),
}
_SLIDING = "sliding_attention"


def is_dflash_config(fields: dict[str, Any]) -> bool:
    """Whether a config.json is that of a head which drafts blocks."""
    names = (*_ARCHITECTURES, *_NOT_YET)
    is_named = any(name in names for name in read_architectures(fields))
    return is_named or fields.get("speculators_model_type") in _SPECULATORS


def read_algorithm(fields: dict[str, Any]) -> Algorithm:
    """Which of them it is."""
    return _recognise(fields)[1]


def count_drafts(fields: dict[str, Any]) -> int:
    """How deep such a head drafts."""
    flat, kind = _flat(fields), _recognise(fields)
    return _block(flat, *kind, is_causal=False, mask_token=0, notes=[]).num_drafts


def parse_dflash(
    fields: dict[str, Any],
    names: Collection[str],  # canonical names of its tensors
    target: HeadTargetConfig,
) -> HeadConfig:
    """The head that a config.json describes."""
    dialect, algorithm = _recognise(fields)
    flat, notes = _flat(fields), list[str]()
    _refuse_others(flat, algorithm)
    layers = read_object(fields, "transformer_layer_config") or fields
    is_forced = _is_all_windows(flat, layers)
    layers = layers | _windows(flat, layers, is_forced=is_forced)
    plain = dense_layers(layers, names, target)
    causal_layers = _causal_layers(flat, plain.pattern.windows, is_forced=is_forced)
    has_mask_vector = MASK_VECTOR in names
    mask_token = 0 if has_mask_vector else read_mask_token(flat, target.vocab_size)
    local = _local(fields, flat, plain.block.hidden) if algorithm == "dflash2" else None
    is_causal = all(causal_layers) and local is None  # convolutions run over whole blocks
    block = _block(
        flat, dialect, algorithm, is_causal=is_causal, mask_token=mask_token, notes=notes
    )
    return HeadConfig(
        aux=_aux_states(flat, dialect, plain.block.hidden, target),
        layer=layer_config(layers, plain, names, is_residual_normed=False),
        output=OutputConfig(
            vocab=plain.vocab_size,
            draft_vocab=read_size_or(flat, "draft_vocab_size", plain.vocab_size),
            is_state_normed=True,
        ),
        max_context=plain.max_context,
        origin=Origin(
            algorithm=algorithm, dialect=dialect, made_for=made_for(fields), notes=tuple(notes)
        ),
        blocks=BlockHeadConfig(
            block=block,
            causal_layers=causal_layers,
            usual_drafts=block.num_drafts,
            has_mask_vector=has_mask_vector,
            markov=_markov(flat),
            confidence=_confidence(flat, names),
            local=local,
        ),
    )


def _recognise(fields: dict[str, Any]) -> tuple[Dialect, Algorithm]:
    kind = fields.get("speculators_model_type")
    for algorithm in _SPECULATORS:
        if kind == algorithm:
            return "speculators", algorithm
    architectures = read_architectures(fields)
    if len(architectures) != 1 or architectures[0] not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ConfigError(f"heads of {architectures} are not supported; use one of {known}")
    return _ARCHITECTURES[architectures[0]]


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """All fields at one level; those of the top level count first."""
    inner = read_object(fields, "dflash_config") | read_object(fields, "dspark_config")
    return inner | {key: value for key, value in fields.items() if value is not None}


def _block(
    flat: dict[str, Any],
    dialect: Dialect,
    algorithm: Algorithm,
    *,
    is_causal: bool,
    mask_token: int,
    notes: list[str],
) -> DraftBlock:
    size = read_size(flat, "block_size", most=_MOST_SLOTS)
    # speculators reads an absent field as false, its trainer's default is true.
    is_next = flat.get("sample_from_anchor", algorithm == "dspark" and dialect != "speculators")
    if algorithm == "dspark" and dialect == "speculators" and "sample_from_anchor" not in flat:
        notes.append(
            "sample_from_anchor is absent: slots predict their own tokens, as vLLM reads it; if "
            "position 0 is never accepted, set it to true"
        )
    if size < 2:
        raise ConfigError(f"config.json sets block_size to {size}; a block has at least 2 slots")
    first = 0 if is_next else 1
    return DraftBlock(size=size, first=first, is_causal=is_causal, mask_token=mask_token)


def _refuse_others(flat: dict[str, Any], algorithm: Algorithm) -> None:
    """Refuse fields that would change what is computed."""
    neutral = _NEUTRAL if algorithm == "dflash2" else _NEUTRAL | _NEUTRAL_BUT_FOR_DFLASH2
    for key, allowed in neutral.items():
        if flat.get(key) not in allowed:
            raise ConfigError(
                f"config.json sets {key} to {flat[key]}, which is not supported; use another head"
            )


def _is_all_windows(flat: dict[str, Any], layers: dict[str, Any]) -> bool:
    """Whether `use_swa` gives all layers a window: it counts where no layer has the type of one."""
    return bool(flat.get("use_swa")) and _SLIDING not in read_list(layers, "layer_types")


def _windows(flat: dict[str, Any], layers: dict[str, Any], *, is_forced: bool) -> dict[str, Any]:
    """The fields of layers that `use_swa` and `swa_window_size` change."""
    window = flat.get("swa_window_size") or layers.get("sliding_window")
    if not is_forced:
        return {"sliding_window": window}
    types = [_SLIDING] * read_size(layers, "num_hidden_layers")
    return {"layer_types": types, "sliding_window": window, "use_sliding_window": True}


def _causal_layers(
    flat: dict[str, Any],
    windows: tuple[int, ...],
    *,
    is_forced: bool,  # windows come from `use_swa`
) -> tuple[bool, ...]:
    """Layers whose slots read no later slots: all or none by a field, else those with a window.

    The windows of `use_swa` are not causal, as vLLM reads it and MiMo's heads were trained.
    """
    has_window = tuple(window < WHOLE_TEXT for window in windows)
    keys = ("is_causal", "causal", "causal_head")
    said = next((bool(flat[key]) for key in keys if key in flat), False if is_forced else None)
    if flat.get("sliding_window_non_causal"):  # of speculators
        said = bool(said)
    if said is False and any(has_window):
        raise ConfigError(
            "config.json gives layers a sliding_window in which slots read later slots, which is "
            "not supported; use a head that is causal there"
        )
    return has_window if said is None else (said,) * len(windows)


def _aux_states(
    flat: dict[str, Any], dialect: Dialect, hidden: int, target: HeadTargetConfig
) -> AuxStatesConfig:
    """The layers that the context reads. speculators counts layers before the state, the others
    name the layer that outputs it.
    """
    is_after = dialect == "speculators"
    key = "aux_hidden_state_layer_ids" if is_after else "target_layer_ids"
    ids = read_list(flat, key)
    if not ids or not all(isinstance(each, int) for each in ids):
        raise ConfigError(f"config.json needs integers in {key}, got {ids}; fix the field")
    layers = tuple(each if is_after else each + 1 for each in ids)
    if target.num_layers in layers:
        raise ConfigError(
            f"{key} names the last layer, which engines read before or after the final norm; "
            "use a head that reads earlier layers"
        )
    return AuxStatesConfig(
        aux_layers=AuxLayers(layers=layers),
        target_hidden=read_size_or(flat, "target_hidden_size", hidden),
        norm="none",
        is_projected=True,
        has_bias=False,
    )


def _markov(flat: dict[str, Any]) -> MarkovConfig | None:
    rank, kind = flat.get("markov_rank") or 0, flat.get("markov_head_type") or "vanilla"
    if kind not in ("vanilla", "gated"):
        raise ConfigError(
            f"config.json sets markov_head_type to {kind}, which is not supported; use a head "
            "with vanilla or gated"
        )
    if not rank:
        return None
    return MarkovConfig(rank=read_size(flat, "markov_rank"), is_gated=kind == "gated")


def _local(fields: dict[str, Any], flat: dict[str, Any], hidden: int) -> LocalConfig:
    inner = read_object(fields, "dflash_config")  # the fields of a target may lie beside it
    cap = "final_logit_softcapping"
    local = LocalConfig(
        taps=read_size(flat, "conv_kernel_size", most=_MOST_SLOTS),
        group=read_size(flat, "conv_group_size"),
        rank=read_size(flat, "selector_rank"),
        num_candidates=read_size(flat, "selector_top_k"),
        embedding_scale=read_real_or(inner, "input_embedding_scale", 1.0),
        logit_scale=read_real_or(inner, "output_multiplier", 1.0),
        logit_cap=read_real_or(inner, cap, 0.0) if inner.get(cap) else 0.0,
    )
    if hidden % local.group:
        raise ConfigError(
            f"config.json sets conv_group_size to {local.group}, which does not divide "
            f"hidden_size {hidden}; fix the field"
        )
    return local


def _confidence(flat: dict[str, Any], names: Collection[str]) -> ConfidenceConfig | None:
    if f"{CONFIDENCE}.weight" not in names:
        return None
    reads_token = bool(flat.get("confidence_head_with_markov", False))
    if reads_token and not flat.get("markov_rank"):
        raise ConfigError("confidence_head_with_markov needs a markov_rank; fix config.json")
    return ConfidenceConfig(reads_token=reads_token, has_bias=f"{CONFIDENCE}.bias" in names)
