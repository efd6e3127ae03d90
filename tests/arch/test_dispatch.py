"""Reference or kernel: the choice is made in ops/, or in the few files that choose a backend."""

import ast
from pathlib import Path

import pytest
from support.every_file import for_every_file

PACKAGE = Path(__file__).parents[2] / "outrider"
OUTSIDE_OPS = [path for path in sorted(PACKAGE.rglob("*.py")) if "ops" not in path.parts]

# Files that choose a backend, a stream, an executor or a kind of memory by the device.
CHOOSES_A_BACKEND = {
    "kv/choose_attention.py",
    "runtime/size_cache.py",
    "runtime/kv_capacity.py",
    "runtime/loaded_weights.py",
    "runtime/model_home.py",
    "runtime/warmup.py",
    "step/device_stream.py",
    "step/host_copy.py",
    "step/zeroed_memory.py",
    "train/training_device.py",
}
KERNEL_BACKEND = "kv/triton_attention.py"  # imported on CUDA only


def name_of(path):
    return str(path.relative_to(PACKAGE))


def asks_for_a_device(tree):
    """Whether the source reads `.is_cuda` or `device.type`, other than in a message."""
    messages = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    in_messages = {id(part) for node in messages for part in ast.walk(node)}
    return any(
        node.attr == "is_cuda"
        or (node.attr == "type" and ast.unparse(node.value).endswith("device"))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and id(node) not in in_messages
    )


def imports_a_kernel(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        if any(name.endswith("_triton") or name.split(".")[0] == "triton" for name in names):
            return True
    return False


@for_every_file(OUTSIDE_OPS)
def test_only_ops_and_backend_choices_ask_for_a_device(path):
    source, is_listed = path.read_text(), name_of(path) in CHOOSES_A_BACKEND
    if "is_cuda" in source or "device.type" in source:
        assert asks_for_a_device(ast.parse(source)) <= is_listed


@for_every_file(OUTSIDE_OPS)
def test_only_ops_and_the_attention_backend_import_kernels(path):
    is_backend = name_of(path) == KERNEL_BACKEND
    source = path.read_text()
    if "triton" in source:
        assert imports_a_kernel(ast.parse(source)) <= is_backend


def test_the_list_names_no_file_that_needs_no_entry():
    sources = {name: ast.parse((PACKAGE / name).read_text()) for name in CHOOSES_A_BACKEND}
    asking = {name for name, tree in sources.items() if asks_for_a_device(tree)}
    assert CHOOSES_A_BACKEND - asking == set()


@pytest.mark.parametrize(
    ("source", "expected"),
    [("x.is_cuda", True), ("t.device.type == 'cuda'", True), ("self._device.type", True),
     ("settings.type", False), ("f'{device.type}'", False)],
)  # fmt: skip
def test_a_question_for_the_device_is_noticed(source, expected):
    assert asks_for_a_device(ast.parse(source)) is expected


KERNELS = sorted(path.stem for path in (PACKAGE / "ops").rglob("*_triton.py"))


def test_no_module_of_a_cpu_installation_imports_a_kernel_at_its_top():
    """A CPU installation has no Triton: only kernels and the attention backend need it."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.stem in KERNELS or name_of(path) == KERNEL_BACKEND:
            continue
        if path.stem in ("dependent_launch", "gpu_facts"):  # imported by kernels only
            continue
        source = path.read_text()
        if "triton" not in source:
            continue
        top = ast.Module(body=ast.parse(source).body, type_ignores=[])
        top.body = [node for node in top.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not imports_a_kernel(top), name_of(path)
