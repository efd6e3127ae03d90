"""The Ray Serve example: replicas by load, and an update that loses no answer. Needs ray[serve]."""

import importlib.util
import threading

import httpx
import pytest
from support.served import LONG_S, wait_for
from support.spoken import tiny_llama, write_tokenizer

from outrider import LLM, SamplingParams

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None or importlib.util.find_spec("ray.serve") is None,
        reason="needs ray: pip install 'outrider[ray-serve]'",
    ),
]
PROMPTS = ["th" * (1 + number) for number in range(6)]
FLAGS = [
    "--served-model-name",
    "tiny",
    "--device",
    "cpu",
    "--draft",
    "ngram",
    "--max-num-seqs",
    "2",
]
SCALING = {
    "min_replicas": 1,
    "max_replicas": 2,
    "target_ongoing_requests": 2,
    "metrics_interval_s": 0.5,
    "look_back_period_s": 1.0,
    "upscale_delay_s": 1.0,
    "downscale_delay_s": 600.0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    tiny_llama(512).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def serve():
    import ray
    from ray import serve

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": 8127})
    yield serve
    serve.shutdown()
    ray.shutdown()


def body_of(prompt):
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": 24}
    return {**asked, "temperature": 0, "ignore_eos": True}


class Clients:
    """Threads that send requests without a pause, and note every answer."""

    def __init__(self, url, num):
        self.answers, self.is_over = [], threading.Event()
        self._url = url
        self._threads = [threading.Thread(target=self._send, args=(i,)) for i in range(num)]
        for each in self._threads:
            each.start()

    def _send(self, number):
        with httpx.Client(timeout=LONG_S) as client:
            while not self.is_over.is_set():
                prompt = PROMPTS[number % len(PROMPTS)]
                found = client.post(f"{self._url}/v1/completions", json=body_of(prompt))
                text = found.json()["choices"][0]["text"] if found.status_code == 200 else ""
                self.answers.append((prompt, found.status_code, text))

    def stop(self):
        self.is_over.set()
        for each in self._threads:
            each.join()


def num_running(serve):
    (deployment,) = serve.status().applications["default"].deployments.values()
    return deployment.replica_states.get("RUNNING", 0), str(deployment.status.value)


@pytest.mark.timeout(600)
def test_replicas_follow_the_queue_and_an_update_loses_no_answer(serve, folder):
    from examples.fleet.ray_serve import OutriderReplica

    def deploy(*more):
        needs = {"num_cpus": 0.5}
        replica = OutriderReplica.options(ray_actor_options=needs, autoscaling_config=SCALING)
        serve.run(replica.bind(str(folder), [*FLAGS, *more]))

    llm = LLM(folder, draft="none", device="cpu")
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    right = {prompt: each.outputs[0].text for prompt, each in zip(PROMPTS, outputs, strict=True)}
    deploy()
    url = "http://127.0.0.1:8127"
    with httpx.stream(
        "POST", f"{url}/v1/completions", json={**body_of("th"), "stream": True}, timeout=LONG_S
    ) as response:
        events = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert len(events) > 2
    assert events[-1] == "data: [DONE]"
    assert num_running(serve) == (1, "HEALTHY")
    clients = Clients(url, 6)
    try:
        wait_for(lambda: num_running(serve) == (2, "HEALTHY"))
        deploy("--no-adaptive")  # other flags: every replica is replaced
        wait_for(lambda: num_running(serve)[1] == "HEALTHY")
        num = len(clients.answers)
        wait_for(lambda: len(clients.answers) > num + 12)
    finally:
        clients.stop()
    wrong = [each for each in clients.answers if each[1:] != (200, right[each[0]])]
    assert wrong == []
