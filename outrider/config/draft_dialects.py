"""The speculation flags of vLLM and SGLang, converted to a `DraftConfig`.

vLLM counts K drafted tokens, so a chain of K has K + 1 nodes. SGLang counts the root as a draft
token, as we do.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from outrider.config.attention_choice import parse_attention
from outrider.config.draft_config import (
    AUTO,
    MAX_NODES,
    MTP,
    NGRAM,
    SUFFIX,
    TEXT_DRAFTERS,
    DraftConfig,
    MatchLengths,
    check_branches,
)
from outrider.errors import ConfigError

# The folder itself says which it is.
_VLLM_MODELS = ("draft_model", "eagle", "eagle3", "dflash", "dspark", "medusa")
# MTP modules inside the target. Older releases of vLLM name the family.
_VLLM_MODULES = (
    "mtp",
    "deepseek_mtp",
    "glm4_moe_mtp",
    "mimo_mtp",
    "qwen3_next_mtp",
    "qwen3_5_mtp",
)
_DSPARK = "dspark"  # with a model: a head; without: the drafter inside of the target
_VLLM_KEYS = (
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "draft_tensor_parallel_size",
    "attention_backend",
    "parallel_drafting",
)
_MAX_LOOKUP = 2**20  # longer than any context
_SGLANG_MODELS = ("EAGLE", "EAGLE3", "STANDALONE", "DFLASH", "DSPARK")
_SGLANG_MODULES = "NEXTN"
SGLANG_KEYS = ("algorithm", "draft_model_path", "num_steps", "eagle_topk", "num_draft_tokens")


def from_vllm(fields: Mapping[str, Any]) -> DraftConfig:
    """The config of vLLM's --speculative-config: a chain of `num_speculative_tokens` drafts."""
    _refuse_unknown("--speculative-config", fields, _VLLM_KEYS)
    if fields.get("draft_tensor_parallel_size", 1) != 1:
        raise ConfigError("draft_tensor_parallel_size must be 1; leave it out")
    if not isinstance(fields.get("parallel_drafting", False), bool):
        raise ConfigError("parallel_drafting must be true or false; the model's folder decides it")
    num_drafts = _size(fields, "num_speculative_tokens", most=MAX_NODES - 1)
    return DraftConfig(
        drafter=_vllm_drafter(fields),
        steps=num_drafts,
        topk=1,
        nodes="auto" if num_drafts == "auto" else num_drafts + 1,
        match=_match(fields),
        attention=parse_attention(
            fields.get("attention_backend") or "auto", "attention_backend of --speculative-config"
        ),
    )


def from_sglang(flags: Mapping[str, Any]) -> DraftConfig:
    """The config of SGLang's --speculative-* flags, by the keys in `SGLANG_KEYS`."""
    _refuse_unknown("SGLang's flags", flags, SGLANG_KEYS)
    drafter, spelled = _sglang_drafter(flags), {_sglang_flag(key): flags[key] for key in flags}
    steps = _size(spelled, _sglang_flag("num_steps"), most=MAX_NODES - 1)
    topk = _size(spelled, _sglang_flag("eagle_topk"), most=MAX_NODES)
    if steps != "auto" and topk != "auto" and drafter not in TEXT_DRAFTERS:
        check_branches(steps, topk, flags=(_sglang_flag("num_steps"), _sglang_flag("eagle_topk")))
    return DraftConfig(
        drafter=drafter,
        steps=steps,
        topk=topk,
        nodes=_size(spelled, _sglang_flag("num_draft_tokens"), most=MAX_NODES),
    )


def choose_dialect(
    own: DraftConfig, *, vllm: Mapping[str, Any] | None, sglang: Mapping[str, Any]
) -> DraftConfig:
    """The config of the one dialect that was used; `own` if no flag of another engine was given.

    `vllm` is None if --speculative-config was not given; an empty object was given and is refused.
    `adaptive`, `check`, `attention` and `dtype` have flags of their own for every dialect.
    """
    given = {
        "--draft, --steps, --topk, --nodes": own != _with_shared(DraftConfig(), own),
        "--speculative-config": vllm is not None,
        "--speculative-algorithm and its flags": bool(sglang),
    }
    if sum(given.values()) > 1:
        used = " and ".join(name for name, is_given in given.items() if is_given)
        raise ConfigError(f"{used} choose the drafter twice; keep one of them")
    if vllm is not None:
        return _with_shared(from_vllm(vllm), own)
    if sglang:
        return _with_shared(from_sglang(sglang), own)
    return own


def _with_shared(config: DraftConfig, own: DraftConfig) -> DraftConfig:
    """The config of a dialect, with the flags that go with every dialect."""
    attention = config.attention if own.attention == AUTO else own.attention
    if config.attention not in (AUTO, attention):
        raise ConfigError(
            "--speculative-draft-attention-backend and attention_backend of --speculative-config "
            "choose two backends; keep one of them"
        )
    return replace(
        config, adaptive=own.adaptive, check=own.check, attention=attention, dtype=own.dtype
    )


def _vllm_drafter(fields: Mapping[str, Any]) -> str:
    method, model = fields.get("method"), fields.get("model")
    if method == NGRAM or model in (NGRAM, "[ngram]"):
        if method not in (None, NGRAM) or model not in (None, NGRAM, "[ngram]"):
            raise ConfigError("the method ngram takes no model; leave one of them out")
        return NGRAM
    if method == SUFFIX:
        if model is not None:
            raise ConfigError("the method suffix takes no model; leave one of them out")
        return SUFFIX
    if method in _VLLM_MODULES or (method == _DSPARK and model is None):
        if model is not None:
            raise ConfigError(f"the method {method} takes no model; the target holds its modules")
        return MTP
    known = ", ".join((*TEXT_DRAFTERS, MTP, *_VLLM_MODELS))
    if method is not None and method not in _VLLM_MODELS:
        raise ConfigError(f"the method {method!r} is not supported; use one of {known}")
    if method is None and model is None:
        raise ConfigError(
            f'--speculative-config lacks "method"; add one of {known}, '
            'and a "model" unless ngram, suffix or mtp'
        )
    if not isinstance(model, str) or not model:
        raise ConfigError(f'the method {method!r} needs a model; add "model": "..."')
    return model


def _sglang_drafter(flags: Mapping[str, Any]) -> str:
    algorithm, model = str(flags.get("algorithm", "")).upper(), flags.get("draft_model_path")
    known = ", ".join((*_SGLANG_MODELS, _SGLANG_MODULES, "NGRAM"))
    if not algorithm:
        raise ConfigError(f"SGLang's flags need --speculative-algorithm: one of {known}")
    if algorithm == "NGRAM":
        if model is not None:
            raise ConfigError("NGRAM takes no model; leave out --speculative-draft-model-path")
        return NGRAM
    if algorithm == _DSPARK.upper() and model is None:
        return MTP
    if algorithm == _SGLANG_MODULES:
        if model is not None:
            raise ConfigError(
                "NEXTN drafts with modules inside the model; leave out "
                "--speculative-draft-model-path"
            )
        return MTP
    if algorithm not in _SGLANG_MODELS:
        raise ConfigError(f"the algorithm {algorithm} is not supported; use one of {known}")
    if not model:
        raise ConfigError(
            f"{algorithm} needs a model; add --speculative-draft-model-path, or use "
            f"{_SGLANG_MODULES} for modules inside the target"
        )
    return str(model)


def _refuse_unknown(where: str, fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in fields:
        if key not in known:
            raise ConfigError(f"{where} has the unknown key {key!r}; use {', '.join(known)}")


def _match(fields: Mapping[str, Any]) -> MatchLengths:
    longest, shortest = (
        _size(fields, key, most=_MAX_LOOKUP) for key in ("prompt_lookup_max", "prompt_lookup_min")
    )
    usual = MatchLengths()
    most = usual.max if longest == "auto" else longest
    return MatchLengths(min=min(usual.min, most) if shortest == "auto" else shortest, max=most)


def _sglang_flag(key: str) -> str:
    return f"--speculative-{key.replace('_', '-')}"


def _size(fields: Mapping[str, Any], key: str, *, most: int) -> int | Literal["auto"]:
    if key not in fields:
        return "auto"
    value = fields[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(
            f"{key} must be an integer of at least 1, at most {most}, got {value!r}; change it"
        )
    return value
