"""Three servers behind sglang-router: their caches work as one, and restarts lose nothing."""

import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.role_servers import BODY, free_port
from support.router import FOLLOW_HEALTH, RouterProcess
from support.served import LONG_S, ServerProcess, wait_for

from outrider import LLM, SamplingParams

NUM_REPLICAS, NUM_CLIENTS = 3, 4
KV_TOKENS = 2048  # of one replica: fewer than its users send, so pages are evicted
FLAGS = (
    *("--served-model-name", "tiny", "--draft", "none", "--kv-tokens", str(KV_TOKENS)),
    *("--max-model-len", "1024"),
)


class Replicas:
    """Owns the servers; one can be started again on its port."""

    def __init__(self, folder, logs):
        self._folder, self._logs = folder, logs
        self._ports = [free_port() for _ in range(NUM_REPLICAS)]
        self.servers = [self._start(place) for place in range(NUM_REPLICAS)]

    def _start(self, place):
        # The second signal ends the delay: nothing here waits for a clock.
        more = ("--shutdown-delay", str(LONG_S), "--port", str(self._ports[place]))
        return ServerProcess(
            self._folder, self._logs / f"{place}-{time.monotonic_ns()}", *FLAGS, *more
        )

    @property
    def urls(self):
        return [each.url for each in self.servers]

    def restart(self, place, router):
        """Signal; when the router has noticed, end the delay, and start another server."""
        server = self.servers[place]
        server.terminate()
        wait_for(lambda: server.url not in router.healthy)
        assert server.stop() == 0
        self.servers[place] = self._start(place)
        wait_for(lambda: server.url in router.healthy)

    def close(self):
        for each in self.servers:
            each.process.kill()
            each.process.wait()


@pytest.fixture(scope="module", name="replicas")
def running_replicas(folder, tmp_path_factory):
    with contextlib.closing(Replicas(folder, tmp_path_factory.mktemp("replicas"))) as replicas:
        yield replicas


@contextlib.contextmanager
def router_of(replicas, tmp_path, policy):
    flags = ("--worker-urls", *replicas.urls, "--policy", policy, *FOLLOW_HEALTH)
    log = tmp_path / "router"
    with contextlib.closing(RouterProcess("sglang-router", log, *flags)) as router:
        wait_for(lambda: len(router.healthy) == NUM_REPLICAS)
        yield router


def prompts_of_users():
    """Requests of 12 users, first those that come first. One user's begin with the same text."""
    rng = random.Random("prompts")

    def text(length):
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=length))

    users = [text(240) for _ in range(12)]
    later = [user + text(60) for user in users for _ in range(5)]
    rng.shuffle(later)
    return [user + text(60) for user in users], later


def hit_rate(usages):
    """Of (cached tokens, prompt tokens) of each request."""
    return sum(cached for cached, _ in usages) / sum(total for _, total in usages)


def hit_rate_of_one_engine(folder, prompts):
    size = {"kv_tokens": NUM_REPLICAS * KV_TOKENS, "max_model_len": 1024}
    llm = LLM(str(folder), device="cpu", draft="none", **size)
    params = SamplingParams(max_tokens=1, temperature=0)
    usages = [llm.generate(each, params)[0].usage for each in prompts]
    return hit_rate([(each.cached_tokens, each.prompt_tokens) for each in usages])


def hit_rate_of_router(router, first, later):
    """Users come at the same time, so that the router spreads them; then one by one."""

    def usage_of(prompt, max_tokens=1):
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        usage = router.post("/v1/completions", body).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    with ThreadPoolExecutor(len(first)) as pool:
        usages = list(pool.map(lambda each: usage_of(each, max_tokens=100), first))
    return hit_rate([*usages, *(usage_of(each) for each in later)])


@pytest.mark.slow
def test_three_replicas_hit_nearly_as_often_as_one_server_with_all_the_cache(
    folder, replicas, tmp_path
):
    first, later = prompts_of_users()
    with router_of(replicas, tmp_path, "cache_aware") as router:
        rate = hit_rate_of_router(router, first, later)
    all_cache = hit_rate_of_one_engine(folder, first + later)
    print(f"hit rate {rate:.3f} of three replicas, {all_cache:.3f} of one engine")
    assert rate >= 0.9 * all_cache > 0.4
    prefixes = [each.invariants["prefix"] for each in replicas.servers]
    computed = [each["queried_tokens"] - each["hit_tokens"] for each in prefixes]
    assert sum(each > 0 for each in computed) > 1, "the router did not spread the users"
    assert max(computed) > KV_TOKENS, "no page was evicted"


def body_of(seed):
    return {**BODY, "prompt": f"client {seed}: {BODY['prompt']}", "seed": seed}


class Load:
    """Clients that send without a pause."""

    def __init__(self, router):
        self._router = router
        self._is_over = threading.Event()
        self.answers = []

    def _send(self, seed):
        while not self._is_over.is_set():
            self.answers.append((seed, self._router.post("/v1/completions", body_of(seed))))

    @contextlib.contextmanager
    def running(self):
        senders = [threading.Thread(target=self._send, args=(i,)) for i in range(NUM_CLIENTS)]
        for each in senders:
            each.start()
        try:
            yield
        finally:
            self._is_over.set()
            for each in senders:
                each.join()

    def wait_for_more(self):
        """Until requests that were sent from now on are answered."""
        goal = len(self.answers) + 3 * NUM_CLIENTS
        wait_for(lambda: len(self.answers) >= goal)


@pytest.mark.slow
def test_a_rolling_restart_of_all_replicas_loses_and_changes_no_answer(replicas, tmp_path):
    with router_of(replicas, tmp_path, "round_robin") as router:
        load = Load(router)
        with load.running():
            for place in range(NUM_REPLICAS):
                load.wait_for_more()
                replicas.restart(place, router)
            load.wait_for_more()
    assert [each.text for _, each in load.answers if each.status_code != 200] == []
    alone = [replicas.servers[0].post("/v1/completions", body_of(i)) for i in range(NUM_CLIENTS)]
    right = [each.json()["choices"] for each in alone]
    assert len({str(each) for each in right}) == NUM_CLIENTS
    assert all(each.json()["choices"] == right[seed] for seed, each in load.answers)


class Streams:
    """Clients that always have a stream each: when one ends, they open the next."""

    def __init__(self, router, num):
        self._url, self._is_over = router.url + "/v1/completions", threading.Event()
        self._clients = [threading.Thread(target=self._follow) for _ in range(num)]
        for each in self._clients:
            each.start()

    def _follow(self):
        body = {**BODY, "prompt": "the", "max_tokens": 1000, "ignore_eos": True, "stream": True}
        while not self._is_over.is_set():
            with httpx.stream("POST", self._url, json=body, timeout=LONG_S) as sent:
                for _ in sent.iter_lines():
                    if self._is_over.is_set():
                        break  # in the middle of the answer

    def close(self):
        self._is_over.set()
        for each in self._clients:
            each.join()


@pytest.mark.slow
def test_loads_count_the_requests_that_the_router_sent(replicas, tmp_path):
    """While all of them run, and when their clients have left."""
    num = 2 * NUM_REPLICAS

    def loads():
        return [each.get("/v1/loads").json()["loads"][0] for each in replicas.servers]

    def are_all_running():
        busy.append(loads())
        return sum(each["num_running_reqs"] for each in busy[-1]) == num

    busy = []
    with router_of(replicas, tmp_path, "round_robin") as router:
        with contextlib.closing(Streams(router, num)):
            wait_for(are_all_running)  # answers end at any time, and others begin
        for each in busy[-1]:
            assert each["num_total_reqs"] == each["num_running_reqs"] + each["num_waiting_reqs"]
            assert each["num_used_tokens"] >= each["num_running_reqs"] * 16
            assert each["token_usage"] == each["num_used_tokens"] / each["max_total_num_tokens"]
            assert each["max_total_num_tokens"] == KV_TOKENS
        wait_for(lambda: not any(each["num_total_reqs"] for each in loads()))
    assert [each["num_used_tokens"] for each in loads()] == [0] * NUM_REPLICAS
