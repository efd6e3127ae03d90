"""Kernels that may start early wait for the one before, on every path and before they write.

A kernel that ends without having waited breaks the chain: the one after it would read what an
earlier one has not written yet. No interpreter shows that, and a GPU shows it now and then.
"""

import ast
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "outrider" / "kernels"
WAITS = {"overlap.begin", "overlap.wait"}
WRITES = ("tl.store", "tl.atomic")


def overlapping_functions():
    """Every Triton function that is told whether it overlaps, by file and name."""
    for path in sorted(KERNELS.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and is_overlapping(node):
                yield path.name, node


def is_overlapping(node):
    is_triton = any("triton.jit" in ast.unparse(each) for each in node.decorator_list)
    return is_triton and any(argument.arg == "PDL" for argument in node.args.args)


FUNCTIONS = {
    f"{name}:{node.name}": node for name, node in overlapping_functions() if name != "overlap.py"
}
HELPERS = {node.name for node in FUNCTIONS.values() if not node.name.endswith("_kernel")}


def waits(body):
    """Whether no path through these statements ends, or writes, before it has waited."""
    for statement in body:
        if isinstance(statement, ast.If) and waits(statement.body) and waits(statement.orelse):
            return True
        if isinstance(statement, ast.Expr | ast.Assign) and is_wait(statement):
            return True
        ends = any(isinstance(each, ast.Return) for each in ast.walk(statement))
        if ends or any(write in ast.unparse(statement) for write in WRITES):
            return False
    return False


def is_wait(statement):
    calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call)]
    return any(ast.unparse(call.func) in WAITS | HELPERS for call in calls)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_path_waits_before_it_writes(name):
    assert waits(FUNCTIONS[name].body)


@pytest.mark.parametrize(
    "source",
    [
        "x = tl.load(a)\ntl.store(b, x)",
        "if n > 0:\n    overlap.begin(PDL)\n    tl.store(b, x)",
        "if n > 0:\n    return\noverlap.begin(PDL)",
        "tl.store(b, x)\noverlap.begin(PDL)",
        "for i in range(n):\n    overlap.wait(PDL)",
    ],
)
def test_a_path_that_does_not_wait_is_noticed(source):
    assert not waits(ast.parse(source).body)


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.py")), ids=lambda path: path.name)
def test_only_kernels_that_are_told_so_are_launched_early(path):
    source = path.read_text()
    if "overlap.options(" not in source:
        return
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert all(is_overlapping(node) for node in nodes if node.name.endswith("_kernel"))
