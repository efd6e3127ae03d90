"""Imports go downwards only, and only wire/ crosses the line between deciding and computing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support.every_file import for_every_file

PACKAGE = Path(__file__).parents[2] / "outrider"

# Each package may import those after it in its own half, and the plain records of both.
DECIDE = ["cli", "bench", "train", "server", "frontend", "engine"]
COMPUTE = [
    "disaggregation",
    "runtime",
    "spec",
    "structured",
    "sampling",
    "models",
    "kv",
    "distributed",
    "step",
    "ops",
]
PLAIN = ["hub", "wire", "config", "errors"]
# What crosses the border: modules that put the halves together, or that hold no tensors.
CROSSINGS = {
    "frontend": (
        "outrider.disaggregation.open_role",
        "outrider.runtime.data_ranks",
        "outrider.runtime.model_home",
        "outrider.runtime.start_data_ranks",
        "outrider.runtime.start_group",
        "outrider.runtime.start_runner",
        "outrider.structured.grammar_bounds",
    ),
    "engine": ("outrider.structured.grammar_cache",),
    "server": ("outrider.structured.grammar_bounds", "outrider.structured.grammar_cache"),
}
TOOLS = ["bench", "train"]  # they use every part of the engine; only the command line uses them
NO_TORCH = ["frontend", "engine", *PLAIN]


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def layer_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(path):
    """Full names of everything a module imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""


def may_import(user, name):
    used = name.split(".")[1]
    if used == user or (used in PLAIN and user not in PLAIN):
        return True
    if user in PLAIN:
        return used in PLAIN and PLAIN.index(used) > PLAIN.index(user)
    if user in (*TOOLS, "cli"):
        return used != "cli" and not (user in TOOLS and used in TOOLS)
    order = DECIDE if user in DECIDE else COMPUTE
    return (used in order and order.index(used) > order.index(user)) or name in CROSSINGS.get(
        user, ()
    )


@for_every_file(modules())
def test_imports_go_downwards(path):
    user = layer_of(path)
    for name in imported_names(path):
        parts = name.split(".")
        if parts[0] != "outrider" or len(parts) < 2 or user == "__init__":
            continue
        assert may_import(user, name), f"{user}/ must not import {name}"


@pytest.mark.parametrize("layer", NO_TORCH)
def test_the_deciding_half_never_imports_torch(layer):
    for path in modules():
        if layer_of(path) == layer and path.name != "interrupts.py":  # it has `import_torch`
            assert not any(name.split(".")[0] == "torch" for name in imported_names(path)), path


BLOCK = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
"""


def run_blocked(blocked, code):
    source = BLOCK.format(blocked=set(blocked)) + code
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)


def test_the_core_imports_without_the_web_stack():
    web = ["fastapi", "starlette", "uvicorn", "pydantic", "zmq", "msgspec", "gguf", "xgrammar"]
    web += ["transformers", "prometheus_client", "openai", "scipy"]
    code = "import outrider; outrider.LLM; import outrider.cli.main"
    done = run_blocked(web, code)
    assert done.returncode == 0, done.stderr


def test_the_front_of_the_server_never_imports_torch():
    done = run_blocked(
        ["torch"], "import outrider.server.start_progress, outrider.server.run_server"
    )
    assert done.returncode == 0, done.stderr


def test_help_does_not_import_torch():
    code = (
        "import sys; sys.argv = ['outrider', '--help']\nfrom outrider.cli.main import main; main()"
    )
    done = run_blocked(["torch", "transformers", "numpy"], code)
    assert done.returncode == 0, done.stderr
    assert "generate" in done.stdout
