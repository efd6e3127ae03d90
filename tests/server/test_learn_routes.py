"""`outrider serve --learn`: a real server whose random head gets better while it is idle."""

import json
import random
import shutil
from pathlib import Path

import httpx
import pytest
import torch
from support.heads import write_head
from support.served import LONG_S, ServerProcess, wait_for
from support.tiny import tiny_model

from outrider.hub.learn_folder import LearnedVersion, LearnFolder, list_versions, version_head
from outrider.models.eagle.inspect_head import inspect_head
from outrider.models.model_config import read_config

EARLIER = LearnedVersion(
    version=1, parent=0, steps=1, texts=8, acceptance_before=1.0, acceptance_after=1.1
)
BODY = {"max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
DRAW = random.Random(1)
PROMPTS = [DRAW.choices(range(3, 67), k=5) for _ in range(8)]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A target whose next token depends mostly on the last one, and a head of random weights."""
    root = tmp_path_factory.mktemp("learn")
    model = tiny_model("llama", seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(0.02)
        model.lm_head.weight.mul_(2.0)
    model.save_pretrained(root / "target")
    write_head(root / "head", read_config(root / "target"), draft_vocab=60)
    learned = LearnFolder(path=root / "learned", start=(root / "head").resolve())
    with learned.new_version(EARLIER) as head:
        shutil.copytree(root / "head", head)
    learned.use(1)  # the last server has left this
    return root


def start(root: Path, *flags: str) -> ServerProcess:
    draft = ("--draft", str(root / "head"), "--steps", "4", "--no-adaptive", "--kv-tokens", "4096")
    learn = ("--learn", "--learn-folder", str(root / "learned"))
    return ServerProcess(root / "target", root / "log", *draft, *learn, *flags)


def answer(server: ServerProcess, prompt: list[int], **more) -> list[int]:
    return run(server, prompt, **more)[0]


def run(server: ServerProcess, prompt: list[int], **more) -> tuple[list[int], int]:
    """The tokens of an answer, and how many accepted drafts it has."""
    body = {**BODY, "prompt": prompt, "return_metrics": True}
    response = server.post("/v1/completions", {**body, **more})
    assert response.status_code == 200, response.text
    speculation = response.json()["metrics"]["speculative_decoding"]
    tokens = response.json()["choices"][0]["token_ids"]
    return tokens, speculation["num_accepted_draft_tokens"]


def stream_with_rollback(server: ServerProcess, prompt: list[int], **more) -> list[int]:
    """The tokens of an answer during which the head before learning comes back."""
    body = {**BODY, "prompt": prompt, "stream": True, **more}
    tokens: list[int] = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=LONG_S) as events:
        for line in events.iter_lines():
            if not line.startswith("data: {"):
                continue
            if not tokens:
                rolled = server.post("/learn/rollback?version=0", None).json()
                assert (rolled["version"], rolled["is_paused"]) == (0, True)
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                tokens += choice["token_ids"] or []
    return tokens


def run_all(server: ServerProcess, **more) -> tuple[list[list[int]], int]:
    """The answers to all prompts, and their accepted drafts."""
    answers = [run(server, each, **more) for each in PROMPTS]
    return [tokens for tokens, _ in answers], sum(accepted for _, accepted in answers)


def learned(server: ServerProcess) -> dict:
    return server.get("/learn").json()


def whole_versions(root: Path) -> list[int]:
    """The versions on disk. Each has a head that can be loaded, and nothing else is there."""
    folder, target = root / "learned", root / "target"
    versions = [each.version for each in list_versions(folder)]
    for version in versions:
        report = inspect_head(version_head(folder, version), read_config(target), target)
        assert report.problems == ()
    names = {each.name for each in folder.iterdir() if not each.name.startswith(".")}
    assert names == {"current.json", *(f"version-{each:04d}" for each in versions)}
    return versions


def in_use(root: Path) -> int:
    return json.loads((root / "learned" / "current.json").read_text())["version"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_served_head_learns_swaps_rolls_back_and_never_changes_a_token(root):
    server = start(root, "--learn-version", "0")  # a rollback at start
    assert learned(server)["version"] == in_use(root) == 0
    plain, _ = run_all(server, speculative="off", learn=False)
    assert learned(server)["texts"] == 0  # the opt-out
    long = {"max_tokens": 200}
    long_plain = answer(server, PROMPTS[0], speculative="off", cache_salt="a tenant", **long)
    before, num_accepted = run_all(server)
    assert before == plain
    wait_for(lambda: learned(server)["version"] >= 2)
    status = learned(server)
    assert status["texts"] == len(PROMPTS)  # nor from the request with a salt
    assert 0 < status["buffer_bytes"] < 2**20
    version = list_versions(root / "learned")[1]
    assert (version.version, version.parent) == (2, 0)
    assert version.acceptance_after > version.acceptance_before
    after, num_accepted_after = run_all(server, learn=False)
    assert after == plain
    assert num_accepted_after > num_accepted + 10

    assert stream_with_rollback(server, PROMPTS[0], learn=False, **long) == long_plain
    assert in_use(root) == 0
    assert run_all(server, learn=False) == (plain, num_accepted)
    assert server.get("/server_info").json()["learn"]["version"] == 0
    assert "outrider:learn_head_version" in server.get("/metrics").text
    assert server.post("/learn/rollback", None).status_code == 400  # there is none before it
    assert server.post("/learn/rollback?version=77", None).status_code == 400

    assert server.post("/learn/resume", None).status_code == 200
    wait_for(lambda: learned(server)["state"] == "training")
    assert server.stop() == 0  # in the middle of a round
    assert {1, 2} <= set(whole_versions(root))


def test_a_server_that_does_not_learn_says_so(server):
    assert learned(server) == {"is_enabled": False}
    for route in ("rollback", "pause", "resume"):
        response = server.post(f"/learn/{route}", None)
        assert response.status_code == 400
        assert "start it with --learn" in response.json()["error"]["message"]
    assert server.get("/server_info").json()["learn"] == {"is_enabled": False}


def test_a_parameter_of_the_url_that_is_wrong_is_named(server):
    error = server.post("/learn/rollback?version=abc", None).json()["error"]
    assert error["param"] == "version"
    assert error["message"].startswith("version: Input should be a valid integer")
