"""Drafting as other engines spell it. One normalisation: everything becomes a `DraftConfig`.

vLLM counts K drafted tokens, so a chain of K has K + 1 nodes; SGLang counts the root among its
draft tokens, as we do.
"""

from collections.abc import Mapping
from typing import Any, Literal

from outrider.config.draft import NGRAM, DraftConfig, MatchLengths
from outrider.errors import ConfigError

_VLLM_MODELS = ("draft_model", "eagle", "eagle3")  # which it is, the folder itself says
_VLLM_KEYS = (
    "method",
    "model",
    "num_speculative_tokens",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "draft_tensor_parallel_size",
)
_SGLANG_MODELS = ("EAGLE", "EAGLE3", "STANDALONE")
SGLANG_KEYS = ("algorithm", "draft_model_path", "num_steps", "eagle_topk", "num_draft_tokens")


def from_vllm(fields: Mapping[str, Any]) -> DraftConfig:
    """What vLLM's --speculative-config means: a chain of `num_speculative_tokens` drafts."""
    _refuse_unknown("--speculative-config", fields, _VLLM_KEYS)
    if fields.get("draft_tensor_parallel_size", 1) != 1:
        raise ConfigError("draft_tensor_parallel_size must be 1; leave it out")
    num_drafts = _count_or_auto(fields, "num_speculative_tokens")
    return DraftConfig(
        drafter=_vllm_drafter(fields),
        steps=num_drafts,
        topk=1,
        nodes="auto" if num_drafts == "auto" else num_drafts + 1,
        match=_match(fields),
    )


def from_sglang(flags: Mapping[str, Any]) -> DraftConfig:
    """What SGLang's --speculative-* flags mean; the keys are `SGLANG_KEYS`, those given."""
    _refuse_unknown("SGLang's flags", flags, SGLANG_KEYS)
    return DraftConfig(
        drafter=_sglang_drafter(flags),
        steps=_count_or_auto(flags, "num_steps"),
        topk=_count_or_auto(flags, "eagle_topk"),
        nodes=_count_or_auto(flags, "num_draft_tokens"),
    )


def choose_dialect(
    own: DraftConfig, *, vllm: Mapping[str, Any], sglang: Mapping[str, Any]
) -> DraftConfig:
    """The one dialect that was used; `own` as it stands when nobody said anything."""
    given = {
        "--draft, --steps, --topk, --nodes": own != DraftConfig(),
        "--speculative-config": bool(vllm),
        "--speculative-algorithm and its flags": bool(sglang),
    }
    if sum(given.values()) > 1:
        used = " and ".join(name for name, is_given in given.items() if is_given)
        raise ConfigError(f"{used} choose the drafter twice; keep one of them")
    if vllm:
        return from_vllm(vllm)
    return from_sglang(sglang) if sglang else own


def _vllm_drafter(fields: Mapping[str, Any]) -> str:
    method, model = fields.get("method"), fields.get("model")
    if method == NGRAM or model in (NGRAM, "[ngram]"):
        if method not in (None, NGRAM) or model not in (None, NGRAM, "[ngram]"):
            raise ConfigError("the method ngram takes no model; leave one of them out")
        return NGRAM
    if method is not None and method not in _VLLM_MODELS:
        known = ", ".join((NGRAM, *_VLLM_MODELS))
        raise ConfigError(f"the method {method!r} is not supported; use one of {known}")
    if not isinstance(model, str) or not model:
        raise ConfigError(f'the method {method!r} needs a model; add "model": "..."')
    return model


def _sglang_drafter(flags: Mapping[str, Any]) -> str:
    algorithm, model = str(flags.get("algorithm", "")).upper(), flags.get("draft_model_path")
    known = ", ".join((*_SGLANG_MODELS, "NGRAM"))
    if not algorithm:
        raise ConfigError(f"SGLang's flags need --speculative-algorithm: one of {known}")
    if algorithm == "NGRAM":
        if model is not None:
            raise ConfigError("NGRAM takes no model; leave out --speculative-draft-model-path")
        return NGRAM
    if algorithm not in _SGLANG_MODELS:
        raise ConfigError(f"the algorithm {algorithm} is not supported; use one of {known}")
    if not model:
        raise ConfigError(f"{algorithm} needs a model; add --speculative-draft-model-path")
    return str(model)


def _refuse_unknown(where: str, fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in fields:
        if key not in known:
            raise ConfigError(f"{where} has the unknown key {key!r}; use {', '.join(known)}")


def _match(fields: Mapping[str, Any]) -> MatchLengths:
    longest, shortest = (
        _count_or_auto(fields, key) for key in ("prompt_lookup_max", "prompt_lookup_min")
    )
    usual = MatchLengths()
    most = usual.max if longest == "auto" else longest
    return MatchLengths(min=min(usual.min, most) if shortest == "auto" else shortest, max=most)


def _count_or_auto(fields: Mapping[str, Any], key: str) -> int | Literal["auto"]:
    if key not in fields:
        return "auto"
    value = fields[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{key} must be an integer of at least 1, got {value!r}; change it")
    return value
