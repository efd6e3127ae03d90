"""Our metrics under the names of vLLM and SGLang, whose tools and dashboards read them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest

OUR_PREFIX = "outrider:"
_SUFFIXES = ("", "_total", "_sum", "_count", "_bucket")
# When a counter began. The other engines do not have these, and vLLM's benchmark would add them up
# as counts.
_CREATED = re.compile(rb"^(?:# (?:HELP|TYPE) )?outrider:\w+_created\b.*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MetricNames:
    """How another engine calls some of our metrics."""

    prefix: str
    theirs: Mapping[str, str]  # by our name; both without prefix and suffix

    def render(self, registry: CollectorRegistry) -> bytes:
        """The metrics that the other engine has, in Prometheus' text format."""
        ours = [f"{OUR_PREFIX}{name}{suffix}" for name in self.theirs for suffix in _SUFFIXES]
        text = generate_latest(registry.restricted_registry(ours))
        return self._line().sub(self._renamed, _CREATED.sub(b"", text))

    def _line(self) -> "re.Pattern[bytes]":
        """The beginning of a line, up to the end of our name."""
        names = "|".join(self.theirs)
        pattern = rf"^(# (?:HELP|TYPE) )?{OUR_PREFIX}({names})(?=(?:{'|'.join(_SUFFIXES)})[ {{])"
        return re.compile(pattern.encode(), re.MULTILINE)

    def _renamed(self, line: "re.Match[bytes]") -> bytes:
        start, name = line.groups(default=b"")
        return start + f"{self.prefix}{self.theirs[name.decode()]}".encode()


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


VLLM = MetricNames(
    "vllm:",
    _same(
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "engine_sleep_state",
        "prompt_tokens",
        "generation_tokens",
        "request_success",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "spec_decode_num_drafts",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_accepted_tokens",
        "spec_decode_num_accepted_tokens_per_pos",
    ),
)
SGLANG = MetricNames(
    "sglang:",
    {
        "num_requests_running": "num_running_reqs",
        "num_requests_waiting": "num_queue_reqs",
        "kv_cache_usage_perc": "token_usage",
        "prefix_cache_hit_rate": "cache_hit_rate",
        "prefix_cache_hits": "cached_tokens",
        "num_preemptions": "num_retracted_requests",
        "generation_tokens_per_second": "gen_throughput",
        "request_success": "num_requests",
        "request_queue_time_seconds": "queue_time_seconds",
        "request_prompt_tokens": "prompt_tokens_histogram",
        "request_generation_tokens": "generation_tokens_histogram",
        "spec_decode_accept_length": "spec_accept_length",
        "spec_decode_accept_rate": "spec_accept_rate",
        "spec_decode_num_drafts": "spec_verify_calls",
        **_same(
            "prompt_tokens",
            "generation_tokens",
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "e2e_request_latency_seconds",
        ),
    },
)
