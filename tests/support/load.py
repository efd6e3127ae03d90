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


@dataclass(frozen=True, kw_only=True)
class LoadCall:
    """What one caller asks, and after how many chunks it leaves, if it does."""

    prompt: str
    asked: dict[str, Any]
    leaves_after: int | None


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
        yield LoadCall(prompt=prompt, asked=asked, leaves_after=leaves_after)


def call_all(url: str, model: str, calls: Sequence[LoadCall]) -> list[str]:
    """The text that each caller read, all calls being made at the same time."""
    return asyncio.run(_call_all(url, model, calls))


async def _call_all(url: str, model: str, calls: Sequence[LoadCall]) -> list[str]:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300
    ) as client:
        return await asyncio.gather(*(_call(client, model, each) for each in calls))


async def _call(client: openai.AsyncOpenAI, model: str, asked: LoadCall) -> str:
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
