"""One server with a drafter for most tests, and the same model offline without one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from support.served import LONG_S, ServerProcess
from support.spoken import tiny_llama, write_tokenizer

from outrider import LLM

CONTEXT = 4096  # answers that take seconds can be interrupted
NAME = "tiny"


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    tiny_llama(CONTEXT).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def start_server(
    served_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., ServerProcess]:
    def start(*flags: str) -> ServerProcess:
        log = tmp_path_factory.mktemp("log") / "stderr"
        return ServerProcess(served_folder, log, "--served-model-name", NAME, *flags)

    return start


@pytest.fixture(scope="session")
def server(start_server: Callable[..., ServerProcess]) -> Iterator[ServerProcess]:
    flags = ("--draft", "ngram", "--no-adaptive", "--kv-tokens", "16384")
    running = start_server(*flags, "--enable-return-hidden-states", "--enable-prompt-embeds")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def default_server(
    smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """The default model: few rows, so that most of a crowd waits, and a cache that is soon full."""
    log = tmp_path_factory.mktemp("default") / "stderr"
    flags = ("--draft", "ngram", "--no-adaptive", "--kv-tokens", "2048", "--max-num-seqs", "16")
    running = ServerProcess(smollm2_folder, log, "--served-model-name", "default", *flags)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=LONG_S)


@pytest.fixture(scope="session")
def llm(served_folder: Path) -> LLM:
    """The reference: the same model in this process, without a drafter."""
    return LLM(served_folder, draft="none", device="cpu")
