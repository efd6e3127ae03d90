"""Groups of ranks that cannot start: one line with the reason, and no process is left."""

import subprocess
import sys

import pytest
from support.processes import processes_of_this_one
from support.spoken import tiny_llama, write_tokenizer

from outrider import LLM
from outrider.errors import ConfigError
from outrider.runtime.join_ranks import open_store

MAIN = "from outrider.cli.main import main; main()"

# Python runs this file in every process that has its folder on the path.
FULL = """
import sys
if "outrider.runtime.rank_process" in sys.orig_argv:
    import torch
    import outrider.models.target as target
    def load_nothing(*args, **more):
        raise torch.OutOfMemoryError("the device of this rank is full")
    target.load_target = load_nothing
"""


@pytest.fixture(name="folder")
def model_with_text(tmp_path):
    folder = tmp_path / "model"
    tiny_llama(256).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def test_more_ranks_than_heads_are_refused_before_any_process_starts(folder):
    before = own_ranks()
    with pytest.raises(ConfigError, match="tensor"):
        LLM(folder, draft="none", device="cpu", tensor_parallel_size=64)
    assert not own_ranks() - before


@pytest.mark.slow
def test_a_rank_that_cannot_load_ends_all_with_its_reason(folder, tmp_path, monkeypatch):
    before = own_ranks()
    (tmp_path / "sitecustomize.py").write_text(FULL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with pytest.raises(ConfigError, match="rank 1: OutOfMemoryError"):
        LLM(folder, draft="none", device="cpu", tensor_parallel_size=2)
    assert not own_ranks() - before


GONE = """
import os, sys
if "outrider.runtime.rank_process" in sys.orig_argv:
    os._exit(3)
"""


@pytest.mark.slow
def test_a_rank_that_ends_before_it_joins_is_noticed(folder, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(GONE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with pytest.raises(ConfigError, match="rank 1 has ended"):
        LLM(folder, draft="none", device="cpu", tensor_parallel_size=2)


@pytest.mark.slow
def test_the_ranks_of_a_machine_meet_on_the_loopback_address():
    store = open_store("127.0.0.1")
    with open("/proc/net/tcp") as own, open("/proc/net/tcp6") as wide:
        local = [line.split()[1] for line in own.readlines()[1:]]
        others = [line.split()[1] for line in wide.readlines()[1:]]
    assert f"0100007F:{store.port:04X}" in local
    assert not [each for each in others if each.endswith(f":{store.port:04X}")]


@pytest.mark.slow
def test_a_missing_file_is_one_line_and_an_exit_code(folder):
    (folder / "model.safetensors").unlink()
    command = [sys.executable, "-c", MAIN, "serve", "--model", str(folder), "--device", "cpu"]
    done = subprocess.run(
        [*command, "--tp", "2", "--port", "0", "--draft", "none"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "safetensors" in done.stderr.splitlines()[-1]


def own_ranks():
    """Ranks of this process. Those of an earlier test may not be freed yet."""
    return {pid for pid in processes_of_this_one() if is_rank(pid)}


def is_rank(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as line:
            return "rank_process" in line.read()
    except (FileNotFoundError, ProcessLookupError):
        return False
