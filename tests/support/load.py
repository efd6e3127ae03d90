"""Many callers of one server at once, some of whom leave; and what its processes hold."""

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PATIENCE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class LoadCall:
    """What one caller asks, and after how many chunks it leaves, if it does.

    Some do not stream: they wait for the whole answer, or give up while they wait.
    """

    prompt: str
    asked: dict[str, Any]
    leaves_after: int | None
    streams: bool


def make_calls(num_calls: int, *, seed: int, longest: int) -> Iterator[LoadCall]:
    """Callers with laws, lengths, stop strings and patience of their own."""
    rng = random.Random(seed)
    for _ in range(num_calls):
        asked = {
            "max_tokens": rng.randint(1, longest),
            "temperature": rng.choice([0.0, 0.7, 1.0]),
            "seed": rng.randrange(2**31),
            "stop": rng.choice([None, "e", ["th", "9"]]),
        }
        prompt = "".join(rng.choices("abcdefgh the", k=rng.randint(1, longest + 20)))
        leaves_after = rng.choice([None, None, 0, 1, 5])
        streams = rng.random() < 0.8
        yield LoadCall(prompt=prompt, asked=asked, leaves_after=leaves_after, streams=streams)


def call_all(url: str, model: str, calls: Sequence[LoadCall]) -> list[str]:
    """The text that each caller read, all calls being made at the same time."""
    return asyncio.run(_call_all(url, model, calls))


async def _call_all(url: str, model: str, calls: Sequence[LoadCall]) -> list[str]:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300
    ) as client:
        return await asyncio.gather(*(_call(client, model, each) for each in calls))


async def _call(client: openai.AsyncOpenAI, model: str, asked: LoadCall) -> str:
    return await (_read if asked.streams else _wait)(client, model, asked)


async def _wait(client: openai.AsyncOpenAI, model: str, asked: LoadCall) -> str:
    answer = client.completions.create(model=model, prompt=asked.prompt, **asked.asked)
    if asked.leaves_after is None:
        return (await answer).choices[0].text
    try:
        return (await asyncio.wait_for(answer, _PATIENCE_S)).choices[0].text
    except TimeoutError:
        return ""


async def _read(client: openai.AsyncOpenAI, model: str, asked: LoadCall) -> str:
    text, num_chunks = "", 0
    stream = await client.completions.create(
        model=model, prompt=asked.prompt, **asked.asked, stream=True
    )
    async with stream:
        async for chunk in stream:
            if num_chunks == asked.leaves_after:
                break
            num_chunks += 1
            text += "".join(choice.text for choice in chunk.choices)
    return text


def resident_bytes(pid: int) -> int:
    """The memory that a process really occupies."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
