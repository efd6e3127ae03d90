"""Fields of OpenAI, vLLM, SGLang and their routers that this server does not have.

A value that asks for nothing is accepted. Any other value would change the answer, so it is refused
by its name.
"""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from outrider.server.http_errors import unsupported

ANYTHING = object()  # for fields that change no answer, whatever their value

# Neutral values by name. Null and what is empty are always neutral.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    # OpenAI
    "audio": (),
    "background": (False,),
    "conversation": (),
    "function_call": ("none", "auto"),
    "functions": (),
    "moderation": (),
    "prediction": (),
    "previous_response_id": (),
    "prompt": (),
    "prompt_cache_key": (ANYTHING,),
    "prompt_cache_options": (ANYTHING,),
    "prompt_cache_retention": (ANYTHING,),
    "safety_identifier": (ANYTHING,),
    "service_tier": (ANYTHING,),
    "store": (ANYTHING,),
    "suffix": (),
    "user": (ANYTHING,),
    "web_search_options": (),
    # Anthropic
    "container": (),
    "context_management": (),
    "inference_geo": (ANYTHING,),
    "mcp_servers": (),
    "output_config": (),
    # vLLM
    "bad_words": (),
    "cache_salt": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": (),
    "allowed_token_ids": (),
    "add_special_tokens": (False,),
    "disable_additional_properties": (False,),
    "disable_any_whitespace": (False,),
    "disable_fallback": (False,),
    "ec_transfer_params": (),
    "echo": (False,),
    "guided_decoding_backend": (ANYTHING,),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": (),
    "logprob_token_ids": (),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "request_id": (ANYTHING,),
    "return_mm_kwargs": (ANYTHING,),
    "return_prompt_text": (False,),
    "return_prompt_token_ids": (False,),
    "return_token_ids": (False,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "routed_experts_prompt_start": (ANYTHING,),
    "session_id": (ANYTHING,),
    "spaces_between_special_tokens": (ANYTHING,),
    "stream_interval": (1,),
    "thinking_token_budget": (-1,),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_beam_search": (False,),
    "vllm_xargs": (),
    "watermarking": (False,),
    "whitespace_pattern": (),
    # SGLang
    "audio_data": (),
    "beam_width": (1,),
    "conversation_id": (ANYTHING,),
    "custom_labels": (ANYTHING,),
    "custom_logit_processor": (),
    "custom_params": (),
    "ebnf": (),
    "extra_key": (),
    "external_trace_header": (ANYTHING,),
    "image_data": (),
    "image_max_dynamic_patch": (),
    "images_config": (),
    "input_embeds": (),
    "input_ids": (),
    "json_schema": (),
    "log_metrics": (ANYTHING,),
    "lora_id": (),
    "lora_path": (),
    "max_dynamic_patch": (),
    "max_thinking_tokens": (),
    "min_dynamic_patch": (),
    "no_logs": (ANYTHING,),
    "no_stop_trim": (False,),
    "received_time": (ANYTHING,),
    "regex": (),
    "require_reasoning": (False,),
    "return_bytes": (False,),
    "return_cached_tokens_details": (False,),
    "return_entropy": (False,),
    "return_flat_raw_output_top_logprobs": (False,),
    "return_flat_raw_top_logprobs": (False,),
    "return_hidden_states": (False,),
    "return_indexer_topk": (False,),
    "return_input_ids_in_sglext": (False,),
    "return_meta_info": (False,),
    "return_output_ids_in_sglext": (False,),
    "return_routed_experts": (False,),
    "return_sampling_mask": (False,),
    "return_spec_tokens_details": (False,),
    "rid": (ANYTHING,),
    "routed_experts_start_len": (ANYTHING,),
    "sampling_logprobs_mode": (),
    "separate_reasoning": (True,),
    "session_params": (),
    "stop_regex": (),
    "stream_reasoning": (True,),
    "task": (),
    "thinking": (),
    "use_audio_in_video": (False,),
    "video_config": (),
    "video_data": (),
    "video_max_dynamic_patch": (),
    "watermark": (),
    # routers in front of servers that share a request
    "bootstrap_host": (),
    "bootstrap_pair_key": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
    "data_parallel_rank": (),
    "decode_tp_size": (),
    "disagg_prefill_dp_rank": (),
    "routed_dp_rank": (),
    "routing_key": (ANYTHING,),
}


class RequestBody(BaseModel):
    """A body whose unknown fields are refused, except for neutral values of the table."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, body: Any) -> Any:
        return drop_neutral(body, cls.model_fields) if isinstance(body, dict) else body


def drop_neutral(
    fields: Mapping[str, Any], known: Collection[str], *, place: str = ""
) -> dict[str, Any]:
    """The fields without those that ask for nothing. `place` is written before a refused name."""
    kept = {}
    for name, value in fields.items():
        if name in known or name not in NEUTRAL:
            kept[name] = value
        elif not _is_neutral(value, NEUTRAL[name]):
            raise unsupported(f"{place}{name}", name)
    return kept


def _is_neutral(value: object, neutral: tuple[object, ...]) -> bool:
    """Whether a value asks for nothing. A list may have a value for each prompt."""
    if ANYTHING in neutral or value in (None, "", [], {}):
        return True
    if isinstance(value, list):
        return all(_is_neutral(each, neutral) for each in value)
    return any(
        isinstance(value, bool) == isinstance(each, bool) and value == each for each in neutral
    )
