"""Many callers at once, some of whom leave: all get their own answers, and nothing is kept."""

import asyncio
import random

import openai

from outrider import SamplingParams

SEED = 20
NUM_CALLS = 200


def make_calls():
    """What each caller asks, and after how many chunks it leaves, if it does."""
    rng = random.Random(SEED)
    for _ in range(NUM_CALLS):
        asked = {
            "max_tokens": rng.randint(1, 60),
            "temperature": rng.choice([0.0, 0.7, 1.0]),
            "seed": rng.randrange(2**31),
            "stop": rng.choice([None, "e", ["th", "9"]]),
        }
        prompt = "".join(rng.choices("abcdefgh the", k=rng.randint(1, 80)))
        yield prompt, asked, rng.choice([None, None, 0, 1, 5])


async def call(client, prompt, asked, leaves_after):
    """The text, as far as it was read."""
    text, num_chunks = "", 0
    stream = await client.completions.create(model="tiny", prompt=prompt, **asked, stream=True)
    async with stream:
        async for chunk in stream:
            if num_chunks == leaves_after:
                break
            num_chunks += 1
            text += "".join(choice.text for choice in chunk.choices)
    return text


async def call_all(url, calls):
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        return await asyncio.gather(*(call(client, *each) for each in calls))


def test_every_answer_under_load_is_its_offline_answer_and_nothing_leaks(server, llm):
    calls = list(make_calls())
    texts = asyncio.run(call_all(server.url, calls))
    outputs = llm.generate(
        [prompt for prompt, _, _ in calls],
        [SamplingParams(**asked) for _, asked, _ in calls],
        use_tqdm=False,
    )
    for text, output, (_, _, leaves_after) in zip(texts, outputs, calls, strict=True):
        whole = output.outputs[0].text
        assert text == whole if leaves_after is None else whole.startswith(text)
    state = server.wait_until_idle()
    assert not state["has_leak"]
    assert state["rows"]["free"] == state["rows"]["total"]
    assert state["pages"]["free"] == state["pages"]["total"]
    assert state["faults"] == {"failed_steps": 0, "drafter_failures": 0}
