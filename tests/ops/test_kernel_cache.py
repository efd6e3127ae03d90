"""Compiled kernels on disk: never older than our sources, and never a reason to fail."""

import ast
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config

import outrider
from outrider.ops.compiled.attend_keys import attend_rows
from outrider.ops.compiled.exponential import exp_of
from outrider.ops.compiled.kernel_cache import hash_of_kernels, kernel_folder, kernel_sources

PACKAGE = Path(outrider.__file__).parent


def imports_of(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return whole | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def test_a_change_of_any_source_gives_another_folder(tmp_path: Path) -> None:
    for path in kernel_sources():
        shutil.copy(path, tmp_path)
    copies = sorted(tmp_path.iterdir())
    before = hash_of_kernels(copies)
    for path in copies:
        text = path.read_text()
        path.write_text(text + "\n")
        assert hash_of_kernels(copies) != before, path.name
        path.write_text(text)
    assert hash_of_kernels(copies) == before


def test_another_cpu_gives_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hash_of_kernels(kernel_sources())
    monkeypatch.setattr(config, "CPU_NAME", "haswell")
    assert hash_of_kernels(kernel_sources()) != before


def test_all_code_that_numba_compiles_is_in_the_hash() -> None:
    hashed = set(kernel_sources())
    for path in PACKAGE.rglob("*.py"):
        if re.search(r"^\s*(from|import) (numba|llvmlite)", path.read_text(), re.MULTILINE):
            assert path in hashed
    allowed = {  # in functions that run in Python
        "outrider.hub.cache_location",
    }
    known = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts) for p in hashed}
    for path in hashed:
        ours = {name for name in imports_of(path) if name.startswith("outrider.")}
        assert ours <= known | allowed, path


def test_kernels_lie_in_our_folder_and_numbas_own_setting_is_kept() -> None:
    folder = kernel_folder()
    assert folder is not None
    assert folder.name == f"kernels-{hash_of_kernels(kernel_sources())}"
    assert folder in Path(exp_of.stats.cache_path).parents  # type: ignore[attr-defined]
    assert list(folder.rglob("attend_keys.attend_rows-*.nbi"))
    assert attend_rows.address
    assert os.environ.get("NUMBA_CACHE_DIR", "") == config.CACHE_DIR


def test_without_a_folder_there_is_no_cache_and_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    kernel_folder.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert kernel_folder() is None
            assert kernel_folder() is None
    finally:
        kernel_folder.cache_clear()
    assert caplog.text.count("set OUTRIDER_CACHE to a folder") == 1


ATTEND = """
import torch
from outrider.ops.attention.attend_in_place import QueryGroup, attend_in_place
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.ordered_attention import SLOT_ORDER, SeenKeys
from outrider.ops.compiled.attend_keys import attend_rows
torch.manual_seed(7)
query, layer, slots = torch.randn(1, 2, 8), torch.randn(2, 4, 4, 8), torch.arange(8)[None]
seen = SeenKeys(num_pages=2, slots=slots, mask=torch.zeros(1, 1, 8), order=SLOT_ORDER, indices={},
                windowed={}, is_one_chunk=False)
group = QueryGroup(first=0, num=1, places=slots[0, :0], seen=seen)
out = attend_in_place(query, [group], layer=layer, rule=AttentionRule(scale=1.0))
print(attend_rows.cache_hits, out.view(torch.int32).tolist())
"""


def start(package: Path, cache: Path) -> "subprocess.Popen[str]":
    """A process that compiles attention, or loads it, and prints whether it did, and numbers."""
    environment = os.environ | {"PYTHONPATH": str(package), "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", ATTEND]
    return subprocess.Popen(
        command, env=environment, cwd=package, stdout=subprocess.PIPE, text=True
    )


def hits_and_numbers(process: "subprocess.Popen[str]") -> tuple[str, str]:
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    hits, _, numbers = printed.strip().partition(" ")
    return hits, numbers


@pytest.mark.slow  # compiles in other processes
def test_a_kernel_follows_a_change_of_a_function_that_it_contains(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "outrider", ignore=shutil.ignore_patterns("__pycache__"))
    cache, helper = tmp_path / "cache", tmp_path / "outrider/ops/compiled/exponential.py"
    first = hits_and_numbers(start(tmp_path, cache))
    again = hits_and_numbers(start(tmp_path, cache))
    assert (first[0], again[0]) == ("0", "1")
    assert first[1] == again[1]
    text = helper.read_text()
    helper.write_text(text.replace("np.float32(1.44269504)", "np.float32(1.0)"))
    assert helper.read_text() != text
    hits, numbers = hits_and_numbers(start(tmp_path, cache))
    assert hits == "0"
    assert numbers != first[1]


@pytest.mark.slow  # compiles in other processes
def test_processes_that_compile_at_the_same_time_do_no_harm(tmp_path: Path) -> None:
    processes = [start(PACKAGE.parent, tmp_path) for _ in range(3)]
    numbers = {hits_and_numbers(process)[1] for process in processes}
    assert len(numbers) == 1
    assert hits_and_numbers(start(PACKAGE.parent, tmp_path)) == ("1", numbers.pop())
    assert not list(tmp_path.rglob("*.tmp.*"))


LOAD = """
from outrider.ops.compiled.why_not_compiled import why_not_compiled
print(why_not_compiled("outrider.ops.attention.attend_in_place"))
"""


@pytest.mark.slow  # compiles in other processes
def test_a_broken_file_of_the_cache_is_a_reason_and_not_a_crash(tmp_path: Path) -> None:
    hits_and_numbers(start(PACKAGE.parent, tmp_path))
    for path in tmp_path.rglob("*.nbi"):
        path.write_bytes(path.read_bytes()[:20])
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", LOAD]
    ran = subprocess.run(
        command, env=environment, cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip()
    assert "delete the folders kernels-* in OUTRIDER_CACHE" in ran.stderr
