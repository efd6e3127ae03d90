"""The async engine shares its event loop among the clients."""

import asyncio
import threading
from functools import partial

import pytest
from support.paper import facts

from outrider.errors import CapacityError, RequestError
from outrider.frontend.call_cost import MAX_IMAGE_BYTES
from outrider.frontend.images.given_image import GivenImage
from outrider.frontend.input_processor import PromptRequest
from outrider.frontend.prompts import TextPrompt, TokenPrompt
from outrider.frontend.sampling_params import SamplingParams
from outrider.frontend.tokenizer.tokenizer import NoTokenizer
from outrider.hub.adapter_folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from outrider.server.answer_request import ServedModel
from outrider.server.async_engine import AsyncEngine, AsyncEngineRules
from outrider.server.call_memory import TEXT_FACTOR, CallMemory, MemoryBudget
from outrider.server.http_errors import ApiError
from outrider.server.limited_text import with_text
from outrider.server.metrics import Meter
from outrider.server.remote_engine import RemoteEngine
from outrider.server.remote_replicas import RemoteReplicas
from outrider.server.request_traces import NoTracer
from outrider.server.served_adapters import ServedAdapters
from outrider.structured.grammar_cache import NO_GRAMMARS


def async_engine_with(max_queued):
    known, meter = facts(depth=1, max_rows=2, num_pages=9, max_context=20), Meter("m")
    engine = RemoteEngine(known, grammars=NO_GRAMMARS, max_queued=max_queued, meter=meter)
    tokenizer = NoTokenizer(eos_ids=frozenset())
    return AsyncEngine(RemoteReplicas([engine]), tokenizer, meter, AsyncEngineRules(), NoTracer())


async def count_turns(turns):
    while True:
        turns.append(None)
        await asyncio.sleep(0)


async def submit(async_engine, num):
    """The handle of one HTTP request with many prompts, and the turns of others meanwhile."""
    params = SamplingParams(max_tokens=1)
    prepared = [async_engine.frontend.inputs.prepare(TokenPrompt((5,)), params)] * num
    turns = []
    counting = asyncio.create_task(count_turns(turns))
    await asyncio.sleep(0)
    try:
        return await async_engine.submit(prepared), len(turns)
    finally:
        counting.cancel()


def test_others_are_answered_while_many_prompts_are_submitted():
    handle, num_turns = asyncio.run(submit(async_engine_with(max_queued=500), 400))
    assert len(handle.requests) == 400
    assert num_turns > 10


def test_prompts_for_which_there_is_no_room_leave_none_behind():
    async_engine = async_engine_with(max_queued=100)
    with pytest.raises(CapacityError):
        asyncio.run(submit(async_engine, 400))
    handle, _ = asyncio.run(submit(async_engine, 100))
    assert len(handle.requests) == 100


def test_a_text_takes_memory_and_a_long_one_has_a_thread_of_its_own():
    """Its length is known only when it has been read."""
    async_engine, budget = async_engine_with(max_queued=1), MemoryBudget(2**16 * TEXT_FACTOR)

    def thread_of(num_chars, images=()):
        call = CallMemory(budget)
        work = with_text(
            async_engine,
            call,
            lambda: TextPrompt("a" * num_chars, images=images),
            lambda _: (threading.current_thread().name, budget.taken),
        )
        try:
            return asyncio.run(work)
        finally:
            call.close()

    name, taken = thread_of(2**16 - 1)
    assert name.startswith("text")
    assert taken == (2**16 - 1) * TEXT_FACTOR
    name, _ = thread_of(2**16)
    assert name.startswith("long text")
    with pytest.raises(ApiError, match="--request-memory"):
        thread_of(2**16 + 1)
    with pytest.raises(ApiError, match="--request-memory"):  # resizing it takes memory, too
        thread_of(1, images=(GivenImage(b""),))
    budget = MemoryBudget(2 * MAX_IMAGE_BYTES)
    name, taken = thread_of(1, images=(GivenImage(b""),))
    assert name.startswith("long text")
    assert taken == MAX_IMAGE_BYTES + TEXT_FACTOR


def test_the_files_of_an_adapter_are_looked_up_in_a_thread(tmp_path):
    """A disk can be slow, and the event loop serves all clients."""
    async_engine, threads = async_engine_with(max_queued=1), []
    call = CallMemory(MemoryBudget(2**20))
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        (tmp_path / name).write_bytes(b"")
    adapters = ServedAdapters(is_enabled=True)
    adapters.add("sql", str(tmp_path))
    adapters.add("gone", str(tmp_path / "gone"))
    served = ServedModel(name="m", adapters=adapters)

    def find(name):
        threads.append(threading.current_thread().name)
        return served.choose(name).find_adapter()

    def prepare(name):
        served.choose(name)  # looks at no file
        request = PromptRequest(prompt=TokenPrompt((5,)), params=SamplingParams(max_tokens=1))
        return asyncio.run(async_engine.prepare(lambda: [request], call.admit, partial(find, name)))

    (prepared,) = prepare("sql")
    assert (prepared.adapter.path, prepared.adapter.name) == (str(tmp_path.resolve()), "sql")
    with pytest.raises(RequestError, match="there is no adapter"):
        prepare("gone")
    assert len(threads) == 2
    assert all(name.startswith("text") for name in threads)
    call.close()
