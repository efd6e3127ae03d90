"""Further arguments of `LLM`: text files, names of our flags, and those of vLLM and SGLang."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from outrider.config.engine_config import LoraConfig
from outrider.config.lora_checks import check_lora
from outrider.config.peer_meaning import is_peer_flag, translate
from outrider.errors import ConfigError
from outrider.frontend.images.image_limits import parse_limits
from outrider.frontend.open_model import ModelChoice
from outrider.frontend.tokenizer.open_tokenizer import TokenizerChoice
from outrider.hub.generation_config import AUTO


class OtherArguments(TypedDict, total=False):
    """Arguments of `LLM` that few calls have."""

    revision: str | None  # of a model on the hub
    tokenizer: str | Path | None  # another one than the model's
    chat_template: str | None  # a file, or the template itself
    # The sampling of calls without SamplingParams: "auto" for the model's generation_config.json,
    # "vllm" for the engine's own values, or a folder.
    generation_config: str
    # processes that share every layer
    tensor_parallel_size: int
    # processes with requests of their own, and whether they hold some of the experts each
    data_parallel_size: int
    enable_expert_parallel: bool
    # "fp8" quantises the projections of a float folder at load; the form of a quantised one
    quantization: str | None
    kv_cache_dtype: str  # "fp8", "fp8_e4m3" or "fp8_e5m2": keys and values in one byte
    row_snapshots: int | str  # copies of row state that cached prefixes continue from, or "auto"
    window_tokens: int | str  # that layers with a sliding window have room for, or "auto"
    attention_backend: str  # of the target, and of the drafter unless it has another
    speculative_draft_attention_backend: str
    draft_dtype: str  # of a head's weights: "auto", or "target" for the type of the target's
    check_draft: bool  # at load, report a drafter that is useless with this model
    pooler_config: Mapping[str, Any] | None  # how `embed` makes embeddings, in vLLM's words
    limit_mm_per_prompt: Mapping[str, int] | str | None  # {"image": 2}: most images of a prompt
    allowed_local_media_path: str  # folder whose files `file:` addresses of images may name
    allowed_media_domains: Sequence[str] | str  # hosts that images are downloaded from
    # names of flags
    max_context: int | None
    context_length: int | None
    disable_cuda_graph: bool
    nnodes: int  # machines that compute the model; this is machine 0
    node_rank: int
    dist_init_addr: str  # HOST:PORT, by which the other machines find this one
    dist_timeout: float  # seconds to wait for them
    distributed_executor_backend: str | None  # "ray": what starts the other processes
    rank_timeout: float  # seconds without a sign of life of another process
    # LoRA adapters, which calls name by a `LoRARequest`
    enable_lora: bool
    enable_draft_lora: bool  # the draft head takes adapters, too
    max_loras: int  # that can run in one step
    max_lora_rank: int
    # of vLLM, without effect; config/peer_flags.py has more of them
    trust_remote_code: bool
    enable_sleep_mode: bool
    enable_prompt_embeds: bool  # every model takes them


_log = logging.getLogger(__name__)
# Arguments of `LLM` itself that a flag of vLLM or SGLang can set.
_OWN = (
    "adaptive",
    "depth",
    "deterministic",
    "enable_prefix_caching",
    "enforce_eager",
    "max_num_batched_tokens",
)
_FLAGS = {
    "max_context": "max_model_len",
    "context_length": "max_model_len",
    "disable_cuda_graph": "enforce_eager",
}


def read_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the name that `LLM` has for them.

    Refuses an unknown argument, or a value that would have to change something.
    """
    known = OtherArguments.__annotations__
    read: dict[str, Any] = {}
    for name, value in arguments.items():
        if is_peer_flag(_flag(name)):
            read |= _read_peer(name, value)
        elif name in known:
            read[_FLAGS.get(name, name)] = value
        else:
            raise ConfigError(
                f"LLM has no argument {name!r}; besides its own it takes {', '.join(known)}"
            )
    return read


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read_peer(name: str, value: Any) -> dict[str, Any]:
    """An argument with the name of a flag of vLLM or SGLang, as arguments of ours."""
    if value is None:
        return {}
    text = value if isinstance(value, str) else json.dumps(value)
    found = translate(_flag(name), text, _is_argument)
    if found.note:
        _log.warning("note: %s", found.note)
    return dict([_argument(found.flags)]) if found.flags else {}


def _is_argument(flag: str) -> bool:
    name, _ = _argument([flag])
    return name in _OWN or name in OtherArguments.__annotations__


def _argument(ours: Sequence[str]) -> tuple[str, Any]:
    """One of our flags as an argument: ("depth", 0), ("enable_prefix_caching", False)."""
    flag, *values = ours
    is_off = flag.startswith("--no-")
    name = flag.removeprefix("--no-" if is_off else "--").replace("-", "_")
    if not values:
        return name, not is_off
    return name, int(values[0]) if values[0].isdigit() else values[0]


def lora_config(arguments: Mapping[str, Any]) -> LoraConfig:
    """The adapters that calls may name."""
    usual = LoraConfig()
    config = LoraConfig(
        is_enabled=arguments.get("enable_lora", False),
        for_drafts=arguments.get("enable_draft_lora", False),
        max_loras=arguments.get("max_loras", usual.max_loras),
        max_rank=arguments.get("max_lora_rank", usual.max_rank),
    )
    check_lora(config)
    return config


def choose_model(model: str, arguments: Mapping[str, Any]) -> ModelChoice:
    """The model with the text files that the arguments name."""
    return ModelChoice(
        model=model,
        revision=arguments.get("revision") or "",
        text=TokenizerChoice(
            tokenizer=str(arguments.get("tokenizer") or ""),
            chat_template=arguments.get("chat_template") or "",
        ),
        generation_config=arguments.get("generation_config") or AUTO,
        pooler=arguments.get("pooler_config") or {},
        image_limits=parse_limits(
            arguments.get("limit_mm_per_prompt"),
            str(arguments.get("allowed_local_media_path") or ""),
            arguments.get("allowed_media_domains") or (),
        ),
    )
