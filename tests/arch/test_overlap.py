"""Kernels that may start early wait for the one before, on every path and before they write.

A kernel that ends without a wait breaks the chain: the kernel after it could read values that an
earlier kernel has not written yet. The interpreter cannot show that, and a GPU shows it rarely.
"""

import ast
from pathlib import Path

import pytest

OPS = Path(__file__).parents[2] / "outrider" / "ops"
KERNELS = sorted(OPS.rglob("*_triton.py"))
WAITS = {"overlap.begin", "overlap.wait"}
WRITES = ("tl.store", "tl.atomic", "gl.store", "gl.atomic")


def overlapping_functions():
    """Every Triton or Gluon function with the argument PDL, by file and name."""
    for path in KERNELS:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and is_overlapping(node):
                yield path.name, node


def is_overlapping(node):
    decorators = [ast.unparse(each) for each in node.decorator_list]
    is_triton = any("triton.jit" in each or "gluon.jit" in each for each in decorators)
    return is_triton and any(argument.arg == "PDL" for argument in node.args.args)


FUNCTIONS = {f"{name}:{node.name}": node for name, node in overlapping_functions()}
HELPERS = {node.name for node in FUNCTIONS.values() if not node.name.endswith("_kernel")}


def waits(body):
    """Whether every path through these statements waits before it ends or writes."""
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
    if any(ast.unparse(call.func) == "gl.warp_specialize" for call in calls):
        return all(function in HELPERS for function in partitions(statement))
    return any(ast.unparse(call.func) in WAITS | HELPERS for call in calls)


def partitions(statement):
    """The functions that a kernel divides its warps between."""
    pairs = [each for each in ast.walk(statement) if isinstance(each, ast.Tuple)]
    return [pair.elts[0].id for pair in pairs if isinstance(pair.elts[1], ast.Tuple)]


def test_kernels_are_found():
    assert len(KERNELS) > 30
    assert len(FUNCTIONS) > 50


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
        "gl.warp_specialize([(unknown, (x, y))], [1], [40])",
    ],
)
def test_a_path_that_does_not_wait_is_noticed(source):
    assert not waits(ast.parse(source).body)


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_only_kernels_with_the_argument_are_launched_early(path):
    source = path.read_text()
    if "overlap.options(" not in source:
        return
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert all(is_overlapping(node) for node in nodes if node.name.endswith("_kernel"))
