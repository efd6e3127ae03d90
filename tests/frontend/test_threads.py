"""Threads and event loops that share one engine: every answer is the one it has alone."""

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from outrider import LLM, AsyncLLM, SamplingParams
from outrider.errors import CapacityError, RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1, seed=5, max_tokens=9, ignore_eos=True)
PROMPTS = ["the rider", "goes", "the road", "a"]


@pytest.fixture(scope="module")
def llm(model_folder):
    return LLM(model_folder, draft="ngram", adaptive=False)


@pytest.fixture(scope="module")
def expected(llm):
    return {
        (prompt, params.max_tokens): llm.generate(prompt, params, use_tqdm=False)[0].outputs[0]
        for prompt in PROMPTS
        for params in (GREEDY, SAMPLED)
    }


def answers(llm, prompt, params):
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0]


def test_generate_in_a_pool_of_threads_gives_every_answer_as_alone(llm, expected):
    jobs = [(prompt, params) for prompt in PROMPTS for params in (GREEDY, SAMPLED)] * 3
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda job: answers(llm, *job), jobs))
    for (prompt, params), output in zip(jobs, found, strict=True):
        assert output.token_ids == expected[prompt, params.max_tokens].token_ids
        assert output.text == expected[prompt, params.max_tokens].text
    assert llm.frontend.is_idle


def test_streams_in_threads_yield_all_of_their_text(llm, expected):
    def read(prompt):
        stream = llm.stream(prompt, GREEDY)
        return "".join(delta.text for delta in stream), stream.output.outputs[0].token_ids

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(read, PROMPTS * 3))
    for prompt, (text, ids) in zip(PROMPTS * 3, found, strict=True):
        assert text == expected[prompt, 12].text
        assert ids == expected[prompt, 12].token_ids


def test_requests_of_two_threads_share_a_step(llm):
    """While one thread steps a long answer, the requests of another thread run in its steps."""
    both = threading.Event()
    engine, most = llm.frontend._engine, [0]
    original = engine.step

    def step_and_count():
        most[0] = max(most[0], len(engine._requests))
        both.set()
        return original()

    engine.step = step_and_count
    try:
        with ThreadPoolExecutor(2) as pool:
            long = pool.submit(answers, llm, "the road", LONG)
            assert both.wait(60)
            short = pool.submit(answers, llm, "a", GREEDY)
            assert len(short.result(60).token_ids) == 12
            assert len(long.result(60).token_ids) == 90
    finally:
        del engine.step
    assert most[0] >= 2


def test_a_stream_that_is_collected_inside_a_step_is_aborted_after_it(llm):
    stream = llm.stream("the road", LONG)
    next(stream)
    other = llm.stream("a", GREEDY)
    original = llm.frontend._engine.step

    def step_and_collect():
        nonlocal stream
        if stream is not None:
            stream = None
            gc.collect()
        return original()

    llm.frontend._engine.step = step_and_collect
    try:
        assert len(list(other)) > 0
    finally:
        del llm.frontend._engine.step
    assert llm.frontend.is_idle


def test_a_waiting_thread_that_is_refused_leaves_the_others_alone(llm, expected):
    def refused():
        with pytest.raises(RequestError, match="context"):
            answers(llm, [1] * 100_000, GREEDY)

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(answers, llm, "goes", GREEDY), pool.submit(refused)]
        assert jobs[0].result().token_ids == expected["goes", 12].token_ids
        jobs[1].result()


@pytest.fixture(scope="module")
def async_llm(model_folder):
    llm = AsyncLLM(model_folder, draft="ngram", adaptive=False)
    yield llm
    llm.shutdown()


async def last_of(llm, prompt, params, **more):
    output = None
    async for each in llm.generate(prompt, params, **more):
        output = each
    return output


def test_many_async_requests_at_once_have_their_own_answers(async_llm, expected):
    async def run():
        jobs = [(prompt, params) for prompt in PROMPTS for params in (GREEDY, SAMPLED)] * 2
        found = await asyncio.gather(*(last_of(async_llm, *job) for job in jobs))
        return list(zip(jobs, found, strict=True))

    for (prompt, params), output in asyncio.run(run()):  # each run has an event loop of its own
        assert output.finished
        assert output.outputs[0].token_ids == expected[prompt, params.max_tokens].token_ids
    for (prompt, _), output in asyncio.run(run()):
        assert output.prompt == prompt


def test_outputs_grow_and_the_last_one_is_finished(async_llm):
    async def run():
        return [each async for each in async_llm.generate("the road", LONG, request_id="mine")]

    outputs = asyncio.run(run())
    lengths = [len(each.outputs[0].token_ids) for each in outputs]
    assert lengths == sorted(set(lengths))
    assert lengths[-1] == 90
    assert [each.finished for each in outputs] == [False] * (len(outputs) - 1) + [True]
    assert {each.request_id for each in outputs} == {"mine"}


def test_abort_ends_a_request_by_its_name(async_llm):
    async def run():
        found = []
        async for each in async_llm.generate("the road", LONG, request_id="mine"):
            found.append(each)
            if len(found) == 1:
                with pytest.raises(RequestError, match="already in use"):
                    await last_of(async_llm, "a", GREEDY, request_id="mine")
                await async_llm.abort("mine")
        return found

    last = asyncio.run(run())[-1]
    assert last.finished
    assert last.outputs[0].finish_reason == "abort"
    assert len(last.outputs[0].token_ids) < 90


def test_leaving_the_iteration_or_being_cancelled_aborts_the_request(async_llm):
    async def run():
        async for _ in async_llm.generate("the road", LONG):
            break
        task = asyncio.create_task(last_of(async_llm, "the road", LONG))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await last_of(async_llm, "a", GREEDY)

    assert asyncio.run(run()).finished
    until = time.monotonic() + 60
    while not async_llm.llm.frontend.is_idle and time.monotonic() < until:
        time.sleep(0.01)
    assert async_llm.llm.frontend.is_idle


def test_bad_input_is_refused_and_other_requests_go_on(async_llm, expected):
    async def run():
        good = asyncio.create_task(last_of(async_llm, "goes", GREEDY))
        with pytest.raises(RequestError, match="context"):
            await last_of(async_llm, [1] * 100_000, GREEDY)
        return await good

    assert asyncio.run(run()).outputs[0].token_ids == expected["goes", 12].token_ids


def test_after_shutdown_requests_are_refused(model_folder):
    llm = AsyncLLM(model_folder, draft="none")
    llm.shutdown()
    with pytest.raises(CapacityError, match="shut down"):
        asyncio.run(last_of(llm, "a", GREEDY))


def test_shutdown_ends_open_iterations_with_what_they_have(model_folder):
    llm = AsyncLLM(model_folder, draft="none")

    async def run():
        outputs = []
        async for each in llm.generate("the road", LONG):
            outputs.append(each)
            if len(outputs) == 1:
                await asyncio.to_thread(llm.shutdown)
        return outputs

    last = asyncio.run(run())[-1]
    assert last.finished
    assert last.outputs[0].finish_reason == "abort"


def test_an_error_outside_of_a_step_reaches_every_reader(model_folder):
    llm = AsyncLLM(model_folder, draft="none")
    engine = llm.llm.frontend._engine

    def fail():
        raise UnicodeEncodeError("utf-8", "x", 0, 1, "no step")

    engine.step = fail
    with pytest.raises(CapacityError, match="UnicodeEncodeError"):
        asyncio.run(asyncio.wait_for(last_of(llm, "a", GREEDY), 60))
    with pytest.raises(CapacityError, match="load the model again"):
        asyncio.run(last_of(llm, "a", GREEDY))
    del engine.step
    llm.shutdown()


def test_a_request_that_ended_before_it_is_watched_wakes_its_reader(async_llm, monkeypatch):
    frontend = async_llm.llm.frontend
    original = frontend.submit

    def submit_and_run(prepared):
        request = original(prepared)
        while not request.is_finished:
            frontend.step()
        return request

    monkeypatch.setattr(frontend, "submit", submit_and_run)
    output = asyncio.run(asyncio.wait_for(last_of(async_llm, "a", GREEDY), 60))
    assert output.finished


def test_a_stream_that_is_collected_while_another_is_read_waits_for_no_turn(llm):
    """The stepping thread waits for the reader, so the reader must not wait for its turn."""
    frontend, is_reading, is_stepping = llm.frontend, threading.Event(), threading.Event()
    dropped = llm.stream("the road", LONG)
    next(dropped)
    original = frontend._engine.step

    def step_while_read():
        is_stepping.set()
        assert is_reading.wait(60)
        return original()

    def read_and_drop():
        nonlocal dropped
        assert is_stepping.wait(60)
        with frontend.reading():
            is_reading.set()
            dropped = None
            gc.collect()

    frontend._engine.step = step_while_read
    try:
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(answers, llm, "a", GREEDY), pool.submit(read_and_drop)]
            assert len(jobs[0].result(60).token_ids) == 12
            jobs[1].result(60)
    finally:
        del frontend._engine.step
    assert frontend.is_idle


def test_half_a_surrogate_pair_is_no_salt():
    with pytest.raises(RequestError, match="cache_salt"):
        SamplingParams(cache_salt="\ud800")


def test_an_async_llm_sleeps_and_wakes_up(async_llm, expected):
    async def run():
        first = None
        async for each in async_llm.generate(PROMPTS[0], LONG):
            if first is None:
                first = each
                await async_llm.sleep()
                assert await async_llm.is_sleeping()
        assert each.finished  # by the sleep, or before it
        await async_llm.wake_up()
        return await last_of(async_llm, PROMPTS[0], GREEDY)

    output = asyncio.run(run())
    assert output.outputs[0].token_ids == expected[PROMPTS[0], GREEDY.max_tokens].token_ids
