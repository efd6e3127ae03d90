"""Many clients of one server at once, some of which leave; and the memory of a process."""

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LEAVE_AFTER_S = 0.1


@dataclass(frozen=True, kw_only=True)
class LoadRequest:
    """What one client requests, and after how many chunks it leaves, if it does.

    Some do not stream: they wait for the whole answer, or leave while they wait.
    """

    prompt: str
    params: dict[str, Any]
    leaves_after: int | None
    streams: bool


def make_requests(num_requests: int, *, seed: int, longest: int) -> Iterator[LoadRequest]:
    """Requests with different sampling, lengths, stop strings and times to leave."""
    rng = random.Random(seed)
    for _ in range(num_requests):
        params = {
            "max_tokens": rng.randint(1, longest),
            "temperature": rng.choice([0.0, 0.7, 1.0]),
            "top_p": 1.0,  # a server would take the model's own value
            "seed": rng.randrange(2**31),
            "stop": rng.choice([None, "e", ["th", "9"]]),
        }
        prompt = "".join(rng.choices("abcdefgh the", k=rng.randint(1, longest + 20)))
        leaves_after = rng.choice([None, None, 0, 1, 5])
        streams = rng.random() < 0.8
        yield LoadRequest(prompt=prompt, params=params, leaves_after=leaves_after, streams=streams)


def send_all(url: str, model: str, requests: Sequence[LoadRequest]) -> list[str]:
    """The text that each client read; all requests are sent at the same time."""
    return asyncio.run(_send_all(url, model, requests))


async def _send_all(url: str, model: str, requests: Sequence[LoadRequest]) -> list[str]:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300
    ) as client:
        return await asyncio.gather(*(_send(client, model, each) for each in requests))


async def _send(client: openai.AsyncOpenAI, model: str, request: LoadRequest) -> str:
    return await (_read if request.streams else _wait)(client, model, request)


async def _wait(client: openai.AsyncOpenAI, model: str, request: LoadRequest) -> str:
    answer = client.completions.create(model=model, prompt=request.prompt, **request.params)
    if request.leaves_after is None:
        return (await answer).choices[0].text
    try:
        return (await asyncio.wait_for(answer, _LEAVE_AFTER_S)).choices[0].text
    except TimeoutError:
        return ""


async def _read(client: openai.AsyncOpenAI, model: str, request: LoadRequest) -> str:
    text, num_chunks = "", 0
    stream = await client.completions.create(
        model=model, prompt=request.prompt, **request.params, stream=True
    )
    async with stream:
        async for chunk in stream:
            if num_chunks == request.leaves_after:
                break
            num_chunks += 1
            text += "".join(choice.text for choice in chunk.choices)
    return text


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
