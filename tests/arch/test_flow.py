"""docs/flow.md tells the truth: a real request visits these files, in this order, and no others."""

import re
from collections import Counter
from pathlib import Path

import pytest
from support.hops import followed, following_environment, path_through, read_stacks
from support.served import ServerProcess
from support.spoken import tiny_llama, write_tokenizer

from outrider.cli.main import run

FLOW = Path(__file__).parents[2] / "docs" / "flow.md"
# From file to file; a second visit of a file is not counted.
MOST_HOPS, MOST_HOPS_OVER_HTTP = 24, 33

GENERATE = [
    ("frontend/tokenizer/tokenizer.py", "Tokenizer.encode"),
    ("frontend/input_processor.py", "resolve_sampling"),
    ("engine/engine.py", "Engine.add"),
    ("engine/scheduler.py", "Scheduler.schedule"),
    ("engine/prefix_cache/prefix_cache.py", "PrefixCache.open"),
    ("step/planner.py", "Planner.plan"),
    ("spec/ngram_drafter.py", "NgramDrafter.propose"),
    ("step/fill_plan.py", "fill"),
    ("models/decoder.py", "Decoder.forward"),
    ("ops/linear/tile_layers.py", "TileLayers.__call__"),
    ("sampling/sampler.py", "sample_tokens"),
    ("ops/tree/verify.py", "verify"),
    ("spec/commit.py", "commit"),
    ("spec/ngram_drafter.py", "NgramDrafter.observe"),
    ("runtime/step_output.py", "copy_to_host"),
    ("runtime/step_output.py", "unpack_tokens"),
    ("engine/request.py", "Request.append"),
    ("frontend/tokenizer/detokenizer.py", "StreamedText.push"),
    ("frontend/request_state.py", "DeltaReader.take"),
]

SERVE = [
    ("server/routes/chat_routes.py", "chat_routes.<locals>.create_chat_completion"),
    *GENERATE[:2],
    ("server/remote_engine.py", "RemoteEngine.add"),
    ("server/supervisor.py", "WorkerLink.send"),
    ("server/worker_process.py", "Worker._handle"),
    *GENERATE[2:-2],
    ("server/replica.py", "Replica.receive"),
    *GENERATE[-2:],
    ("server/answer_request.py", "EventStream._write"),
]
BELOW_ROUTES = (  # on every stack
    "cli/",
    "server/run_server.py",
    "server/json_body.py",
    "server/access_log.py",
    "server/body_limits.py",
    "server/call_memory.py",
)
# Four tokens, the same on every run: an answer that ends at its first token has no text to follow.
ANSWER_FLAGS = ("--temperature", "0", "--max-tokens", "4", "--ignore-eos")
ANSWER_FIELDS = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}


def documented(heading: str) -> list[str]:
    """The files linked in the numbered list below a heading, in order."""
    section = FLOW.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    steps = re.findall(r"^\d+\. .*?(?=^\d+\. |\Z)", section, flags=re.MULTILINE | re.DOTALL)
    return [re.findall(r"\]\(\.\./outrider/([^)]+)\)", step)[0] for step in steps]


@pytest.fixture(scope="module")
def generate_path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_llama().save_pretrained(folder)
    write_tokenizer(folder)
    flags = ["--model", str(folder), "--raw", "--draft", "ngram", *ANSWER_FLAGS]
    with followed(GENERATE) as follower:
        assert run(["generate", "abcabcabc", *flags]) == 0
    path = path_through(GENERATE, follower.stacks)
    return path[path.index("cli/generate.py") :]  # what comes before parses the command line


@pytest.fixture(scope="module")
def serve_path(tmp_path_factory):
    """The same over HTTP, through two processes."""
    folder, noted = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("noted")
    tiny_llama().save_pretrained(folder)
    write_tokenizer(folder)
    environment = following_environment(noted, SERVE)
    server = ServerProcess(folder, noted / "log", "--draft", "ngram", environment=environment)
    body = {"messages": [{"role": "user", "content": "abcabc"}], "stream": True, **ANSWER_FIELDS}
    try:
        assert server.post("/v1/chat/completions", body).status_code == 200
    finally:
        server.stop()
    stacks = {
        landmark: [file for file in stack if not file.startswith(BELOW_ROUTES)]
        for landmark, stack in read_stacks(noted).items()
    }
    return path_through(SERVE, stacks)


def test_the_path_of_generate_is_the_one_in_the_docs(generate_path):
    assert list(dict.fromkeys(generate_path)) == documented("From a prompt to text")


def test_generate_takes_few_hops_and_no_file_is_visited_more_than_twice(generate_path):
    assert len(set(generate_path)) - 1 <= MOST_HOPS
    assert max(Counter(generate_path).values()) <= 2


@pytest.mark.slow
def test_the_path_over_http_is_the_one_in_the_docs(serve_path):
    assert list(dict.fromkeys(serve_path)) == documented("Over HTTP")


@pytest.mark.slow
def test_a_request_over_http_takes_few_hops_and_visits_no_file_more_than_twice(serve_path):
    assert len(set(serve_path)) - 1 <= MOST_HOPS_OVER_HTTP
    assert {file: count for file, count in Counter(serve_path).items() if count > 2} == {}
