"""A request as one machine-readable object: what `--json` prints and batch files hold."""

import math
from dataclasses import asdict
from typing import Any

from outrider.frontend.outputs import Acceptance, CompletionOutput, RequestOutput

_LEAST = -9999.0  # vLLM sends this number instead of -infinity


def finite(logprob: float) -> float:
    """The log-probability as a number that JSON has: infinities and NaN become the least one."""
    return logprob if _LEAST < logprob < math.inf else _LEAST


def describe_output(output: RequestOutput) -> dict[str, Any]:
    """The first output flat; with n > 1 also all of them under `outputs`. A failure has `error`."""
    completions = [_describe_completion(each) for each in output.outputs]
    report = completions[0] | {
        "prompt_tokens": output.usage.prompt_tokens,
        "cached_tokens": output.usage.cached_tokens,
        "tokens_per_s": round(output.timing.tokens_per_s, 2),
        "first_token_s": round(output.timing.first_token_s, 4),
        "total_s": round(output.timing.total_s, 4),
    }
    if output.error:
        report["error"] = output.error
    return report | {"outputs": completions} if len(completions) > 1 else report


def _describe_completion(completion: CompletionOutput) -> dict[str, Any]:
    report = {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "seed": completion.seed,
        "acceptance": _describe_acceptance(completion.acceptance),
    }
    if completion.hidden_states is not None:
        report["hidden_states"] = completion.hidden_states.tolist()
    if completion.logprobs is None:
        return report
    positions = [
        {
            token: asdict(logprob) | {"logprob": finite(logprob.logprob)}
            for token, logprob in position.items()
        }
        for position in completion.logprobs
    ]
    return report | {"logprobs": positions}


def _describe_acceptance(acceptance: Acceptance) -> dict[str, Any]:
    return {
        "rounds": acceptance.rounds,
        "drafted": acceptance.drafted,
        "kept": acceptance.kept,
        "kept_per_position": acceptance.kept_per_position,
        "accept_rate": round(acceptance.accept_rate, 4),
        "accept_length": round(acceptance.accept_length, 4),
    }
