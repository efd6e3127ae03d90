"""Texts that clients want tokenised without an answer: bounded in length, memory and time."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from outrider.errors import RequestError
from outrider.frontend.call_cost import MAX_IMAGE_BYTES
from outrider.frontend.prompts import TextPrompt
from outrider.server.async_engine import AsyncEngine, prompt_size
from outrider.server.call_memory import TEXT_FACTOR, CallMemory

MAX_CHARS = 2**20  # of a text; copying millions of ids would hold other requests

Result = TypeVar("Result")


async def with_text(
    async_engine: AsyncEngine,
    memory: CallMemory,
    read: Callable[[], TextPrompt],
    work: Callable[[TextPrompt], Result],
) -> Result:
    """What `work` makes of the text that `read` finds in a body; both run in threads.

    The length of a conversation is known when its template has been rendered, so a long one changes
    threads: short texts do not wait behind it.
    """
    prompt = await async_engine.run_in_thread(read)
    num_chars = len(prompt.text)
    if num_chars > MAX_CHARS:
        raise RequestError(
            f"the text has {num_chars} characters and may have {MAX_CHARS}; send it in parts"
        )
    memory.take(num_chars * TEXT_FACTOR + len(prompt.images) * MAX_IMAGE_BYTES)
    return await async_engine.run_in_thread(partial(work, prompt), size=prompt_size(prompt))
