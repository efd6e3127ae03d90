"""House rules that a machine can hold, read off the source."""

import ast
import re
from collections import Counter
from pathlib import Path

from support.every_file import for_every_file

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "outrider"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Programs and everything below them. What runs before the first step may look at the host.
PROGRAM_LAYERS = ["spec", "sampling", "step", "models", "kv", "ops"]
BEFORE_THE_FIRST_STEP = [
    "models/quantised/word_forms.py",
    "models/model_config.py",
    "models/decoder_loader.py",
    "models/finite_weights.py",
    "models/registry.py",
]
AROUND_A_STEP = [
    "step/device_stream.py",  # events, and reads of finished copies
    "kv/bad_keys.py",  # runs in a graph break
    "ops/linear/lora_by_slot.py",  # likewise
]
HOST_READS = {"item", "tolist", "cpu", "numpy", "nonzero", "synchronize"}
HOST_MODULES = {"time", "os", "random", "datetime"}

MAX_FUNCTION = 50
MAX_FILE = 400
VAGUE_NAMES = {"utils", "util", "common", "helper", "helpers", "info", "manager", "data", "misc"}


def program_sources():
    return [
        path
        for path in SOURCES
        if (path.relative_to(PACKAGE).parts[0] in PROGRAM_LAYERS or path.name == "program.py")
        and str(path.relative_to(PACKAGE)) not in [*BEFORE_THE_FIRST_STEP, *AROUND_A_STEP]
    ]


def calls(tree):
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


@for_every_file(program_sources())
def test_programs_never_read_the_host(path):
    tree = ast.parse(path.read_text())
    for call in calls(tree):
        if isinstance(call.func, ast.Attribute):
            assert call.func.attr not in HOST_READS, f"{path}:{call.lineno} {call.func.attr}()"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not {alias.name for alias in node.names} & HOST_MODULES, f"{path}:{node.lineno}"
        elif isinstance(node, ast.ImportFrom):
            assert node.module not in HOST_MODULES, f"{path}:{node.lineno}"


@for_every_file(SOURCES)
def test_only_the_planner_makes_plans(path):
    source = path.read_text()
    if path == PACKAGE / "step" / "planner.py" or "StepPlan(" not in source:
        return
    made = [c for c in calls(ast.parse(source)) if ast.unparse(c.func) == "StepPlan"]
    assert not made, f"{path}:{made[0].lineno}"


@for_every_file(SOURCES)
def test_files_and_functions_fit_a_reader(path):
    source = path.read_text()
    assert source.isascii()
    assert source.count("\n") <= MAX_FILE
    assert path.stem not in VAGUE_NAMES
    tree = ast.parse(source)
    assert ast.get_docstring(tree) or not tree.body, "a module says what it knows"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno
            is_kernel = any("triton" in ast.unparse(d) for d in node.decorator_list)
            assert is_kernel or length <= MAX_FUNCTION, f"{path}:{node.lineno} {node.name}"


@for_every_file(SOURCES)
def test_nothing_is_asked_whether_it_has_an_attribute(path):
    source = path.read_text()
    if "hasattr" not in source and "getattr" not in source:
        return
    for call in calls(ast.parse(source)):
        name = ast.unparse(call.func)
        assert name != "hasattr", f"{path}:{call.lineno}"
        assert name != "getattr" or len(call.args) == 2, f"{path}:{call.lineno}"


@for_every_file(SOURCES)
def test_a_todo_names_an_issue(path):
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if "TODO" in line or "FIXME" in line:
            assert re.search(r"# TODO\(#\d+\): ", line), f"{path}:{number}"


def test_every_link_in_the_docs_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert pages
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_no_two_public_classes_share_a_name():
    places = {}
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_file_name_says_what_is_in_it_without_its_folder():
    sources = [*SOURCES, *(ROOT / "benchmarks").rglob("*.py")]
    names = Counter(path.name for path in sources if not path.name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


PERSONS = r"\b(nobody|somebody|anybody|everybody|whoever)\b"  # tensors and requests are things


@for_every_file(SOURCES)
def test_things_are_not_persons(path):
    assert re.findall(PERSONS, path.read_text(), flags=re.IGNORECASE) == []
