"""How long a prompt that another server computed takes to its first token, by its length."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.roles.servers import FirstToken, Pair, ask_first_token, get, post

_NUM_PROMPTS = 3  # of each length; times are their medians


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTime:
    """Seconds of one prompt, and the bytes that it moved."""

    num_tokens: int
    prefill_s: float  # on the prefill server
    first_token_s: float  # on the decode server, from the end of the prefill on
    alone_s: float  # to the first token of a decode server that computes the prompt itself
    num_bytes: int  # that the decode server read
    floor_bytes: int  # of the KV that came: fewer cannot move


def time_transfers(pair: Pair, lengths: Sequence[int]) -> Iterator[TransferTime]:
    """Medians of the prompts of each length."""
    info = get(pair.decode + "/server_info")
    token_bytes = info["ranks"][0]["kv_bytes"] / info["max_total_num_tokens"]
    _time_prompt(pair, 64)  # connections and kernels
    for length in lengths:
        before = _num_read(pair)
        times = [_time_prompt(pair, length) for _ in range(_NUM_PROMPTS)]
        apart = [each for each, _ in times]
        num_cached = sum(each.cached_tokens for each in apart)
        yield TransferTime(
            num_tokens=length,
            prefill_s=_median([each.prefill_s for each in apart]),
            first_token_s=_median([each.decode_s for each in apart]),
            alone_s=_median([alone_s for _, alone_s in times]),
            num_bytes=(_num_read(pair) - before) // _NUM_PROMPTS,
            floor_bytes=int(num_cached * token_bytes) // _NUM_PROMPTS,
        )


def random_prompt(length: int) -> list[int]:
    """Token ids that no cache has seen."""
    return [random.randrange(100, 2000) for _ in range(length)]


def _num_read(pair: Pair) -> int:
    """Bytes that the decode server has read of the other one's KV."""
    return int(get(pair.decode + "/invariants")["transfers"]["total_bytes"])


def _time_prompt(pair: Pair, length: int) -> tuple[FirstToken, float]:
    """A prompt by both servers, and the seconds of another one on the decode server alone."""
    apart = ask_first_token(pair, random_prompt(length))
    alone_s, _ = post(pair.decode, {"prompt": random_prompt(length), "max_tokens": 1})
    return apart, alone_s


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
