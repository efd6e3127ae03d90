"""How long a prompt that another server computed takes to its first token, by its length."""

import json
import random
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.roles.servers import Pair, ask_first_token, post


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTime:
    """Seconds of one prompt, and the bytes of its pages."""

    num_tokens: int
    prefill_s: float  # on the prefill server
    first_token_s: float  # on the decode server, from the end of the prefill on
    alone_s: float  # to the first token of a decode server that computes the prompt itself
    num_bytes: int


def time_transfers(pair: Pair, lengths: Sequence[int]) -> Iterator[TransferTime]:
    """Medians of three prompts of each length."""
    info = json.loads(urllib.request.urlopen(pair.decode + "/server_info").read())
    token_bytes = info["ranks"][0]["kv_bytes"] / info["max_total_num_tokens"]
    _time_prompt(pair, 64)  # connections and kernels
    for length in lengths:
        times = [_time_prompt(pair, length) for _ in range(3)]
        prefill_s, first_token_s, alone_s = (sorted(each)[1] for each in zip(*times, strict=True))
        yield TransferTime(
            num_tokens=length,
            prefill_s=prefill_s,
            first_token_s=first_token_s,
            alone_s=alone_s,
            num_bytes=int(length * token_bytes),
        )


def random_prompt(length: int) -> list[int]:
    """Token ids that no cache has seen."""
    return [random.randrange(100, 2000) for _ in range(length)]


def _time_prompt(pair: Pair, length: int) -> tuple[float, float, float]:
    """Seconds on the prefill server, on the decode server after it, and on the latter alone."""
    prefill_s, first_token_s = ask_first_token(pair, random_prompt(length))
    alone_s, _ = post(pair.decode, {"prompt": random_prompt(length), "max_tokens": 1})
    return prefill_s, first_token_s, alone_s
