"""All calls in flight stay within one limit of memory, and an idle server shrinks again."""

import asyncio
import time
from dataclasses import replace

import pytest
from fastapi import APIRouter, FastAPI, Request
from support.load import make_requests, resident_bytes, send_all
from support.served import wait_for

from outrider.frontend.call_cost import CallCost
from outrider.server.body_limits import BodyLimits
from outrider.server.call_memory import (
    BODY_FACTOR,
    MIB,
    CallMemory,
    CallMemoryMiddleware,
    MemoryBudget,
    memory_of,
)
from outrider.server.http_errors import ApiError, install_handlers
from outrider.server.json_body import JsonRoute

NOTHING = CallCost(outputs=0, values=0, logprobs=0, states=0, grammar_chars=0)


def test_a_call_waits_for_others_and_is_told_which_limit_it_met():
    budget = MemoryBudget(10 * MIB)
    first, second = CallMemory(budget), CallMemory(budget)
    first.take(8 * MIB)
    with pytest.raises(ApiError, match=r"3 MiB.*10 MiB of --request-memory; try again") as refused:
        second.take(3 * MIB)
    assert (refused.value.status, refused.value.code) == (429, "memory_full")
    assert refused.value.headers["Retry-After"]
    first.close()
    second.take(3 * MIB)
    assert budget.taken == 3 * MIB


def test_a_call_that_could_never_fit_is_told_so():
    with pytest.raises(ApiError, match="larger --request-memory") as refused:
        CallMemory(MemoryBudget(2 * MIB)).take(3 * MIB)
    assert refused.value.status == 400


def test_a_second_cost_replaces_the_first():
    """Images take a bound until they are resized, and then what they take."""
    budget = MemoryBudget(10 * MIB)
    call = CallMemory(budget)
    call.take(MIB)
    for image_mib in (8, 2, 4):
        call.admit(replace(NOTHING, image_bytes=image_mib * MIB))
        assert budget.taken == (1 + image_mib) * MIB
    with pytest.raises(ApiError):
        call.admit(replace(NOTHING, image_bytes=10 * MIB))
    call.close()
    assert budget.taken == 0


def test_a_refused_call_gives_back_what_it_had():
    budget = MemoryBudget(10 * MIB)
    call = CallMemory(budget)
    call.take(6 * MIB)
    with pytest.raises(ApiError):
        call.take(6 * MIB)
    assert budget.taken == 6 * MIB
    call.close()
    assert budget.taken == 0


def test_idleness_is_told_with_the_most_that_was_taken():
    told = []
    budget = MemoryBudget(10, on_idle=told.append)
    calls = [CallMemory(budget) for _ in range(2)]
    for call in calls:
        call.take(4)
    calls[0].close()
    assert told == []
    calls[1].close()
    assert told == [8]


@pytest.mark.parametrize("field", ["outputs", "values", "logprobs", "grammar_chars", "states"])
def test_everything_that_a_call_wants_takes_memory(field):
    nothing = {"outputs": 0, "values": 0, "logprobs": 0, "grammar_chars": 0, "states": 0}
    assert CallCost(**nothing).num_bytes == 0
    assert CallCost(**nothing | {field: 1000}).num_bytes >= 1000


class Held:
    """An application whose only route holds its memory until it is told to end."""

    def __init__(self, max_bytes, *, body_bytes=2**20):
        self.budget, self.may_end = MemoryBudget(max_bytes), asyncio.Event()
        app, router = FastAPI(), APIRouter(route_class=JsonRoute)
        app.state.body_limits = BodyLimits(body_bytes=body_bytes)

        @router.post("/hold")
        async def hold(body: dict[str, str], request: Request) -> int:
            memory_of(request).take(len(body))
            await self.may_end.wait()
            return self.budget.taken

        app.include_router(router)
        install_handlers(app)
        app.add_middleware(CallMemoryMiddleware, budget=self.budget)
        self.app = app

    async def post(self, *parts):
        """The status of one request whose body comes in parts; an event is waited for."""
        pending, sent = list(parts), []

        async def receive():
            if isinstance(pending[0], asyncio.Event):
                await pending.pop(0).wait()
            part = pending.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(pending)}

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/hold", "query_string": b""}
        await self.app(
            {**scope, "headers": [(b"content-type", b"application/json")]}, receive, send
        )
        return sent[0]["status"]


def test_bodies_count_while_they_arrive_and_until_their_answers_are_sent():
    async def run():
        held, arrived = Held(100 * BODY_FACTOR), asyncio.Event()
        half = asyncio.create_task(held.post(b'{"a": "' + b"x" * 50, arrived, b'"}'))
        await asyncio.sleep(0.01)
        assert held.budget.taken == 57 * BODY_FACTOR
        assert await held.post(b'{"a": "' + b"x" * 50 + b'"}') == 429
        arrived.set()
        await asyncio.sleep(0.01)
        assert held.budget.taken == 59 * BODY_FACTOR + 1
        held.may_end.set()
        assert await half == 200
        assert held.budget.taken == 0
        assert await held.post(b'{"a": "' + b"x" * 50 + b'"}') == 200
        assert await held.post(b'{"a": "' + b"x" * 500 + b'"}') == 400
        assert held.budget.taken == 0

    asyncio.run(run())


def test_the_body_has_the_limit_of_the_server():
    async def run():
        held = Held(2**20, body_bytes=100)
        held.may_end.set()
        assert await held.post(b'{"a": "' + b"x" * 91 + b'"}') == 200
        assert await held.post(b'{"a": "' + b"x" * 92 + b'"}') == 413
        assert held.budget.taken == 0

    asyncio.run(run())


BOMB = {"prompt": ["a"] * 1024, "n": 128, "logit_bias": {str(token): 1.0 for token in range(50)}}
SCORES = {"prompt": ["the"] * 40, "max_tokens": 60, "logprobs": 5, "ignore_eos": True}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_idle_server_returns_to_its_earlier_memory(start_server):
    """Bombs four at once, answers of a megabyte, and a thousand usual requests."""
    flags = ("--draft", "none", "--kv-tokens", "8192", "--max-num-seqs", "8")
    server = start_server(*flags, "--request-memory", "64")
    pid, worker = server.process.pid, server.invariants["worker_pid"]
    usual = list(make_requests(500, seed=1, longest=12))
    send_all(server.url, "tiny", usual[:200])  # what is made once: code, threads, shapes
    server.wait_until_idle()
    time.sleep(1.5)
    before = {each: resident_bytes(each) for each in (pid, worker)}
    for _ in range(2):
        assert server.post("/v1/completions", BOMB).status_code == 400
        assert server.post("/v1/completions", SCORES, timeout=120).status_code == 200
        send_all(server.url, "tiny", usual)
    server.wait_until_idle()
    wait_for(lambda: resident_bytes(pid) - before[pid] < 24 * MIB)
    wait_for(lambda: resident_bytes(worker) - before[worker] < 160 * MIB)
    assert server.stop() == 0
