"""Lists in the docs name everything there is: a new part needs a line in its page."""

import inspect
import json
import re
import tomllib
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.__main__ import app as lab
from benchmarks.steps import body
from outrider.cli import main as cli
from outrider.cli.flags import DraftFlags
from outrider.cli.model_flags import ModelFlags
from outrider.frontend.llm import LLM
from outrider.frontend.vllm_arguments import OtherArguments
from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.shipped_heads import shipped_head
from outrider.models.registry import FAMILIES
from outrider.runtime import draft_kinds as drafts
from outrider.server.metrics import Meter

ROOT = Path(__file__).parents[2]
KERNELS = sorted(path.name for path in (ROOT / "outrider/ops").rglob("*_triton.py"))
KINDS = {name for name in vars(drafts) if name.endswith("Draft")}
ARGUMENTS = sorted(
    set(inspect.signature(LLM).parameters) - {"others"} | set(OtherArguments.__annotations__)
)
SHARED = {each.name for record in (ModelFlags, DraftFlags) for each in fields(record)}
SERVER_FLAGS = sorted(
    set(inspect.signature(cli.serve.serve).parameters) - SHARED - {"model_argument"}
)
BENCHMARKS = [str(each.name) for each in cli.bench.app.registered_commands if not each.hidden]
LAB = [str(each.name) for each in lab.registered_commands]
METRICS = [each.name.partition(":")[2] for each in Meter("model")._registry.collect()]
SOURCE = "".join(path.read_text() for path in sorted((ROOT / "outrider").rglob("*.py")))
VARIABLES = sorted(set(re.findall(r'"((?:OUTRIDER|XDG|OMP|GOMP|ONEDNN)_[A-Z_]+)"', SOURCE)))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DRAFTERS = {
    "NullDrafter",
    "NgramDrafter",
    "MergedDrafter",
    "ModelDrafter",
    "ModuleDrafter",
    "BlockDrafter",
}


def page(name):
    return (ROOT / name).read_text()


@pytest.mark.parametrize("architecture", [*FAMILIES, "DeepseekV4ForCausalLM"])
def test_every_architecture_is_listed(architecture):
    assert f"`{architecture}`" in page("docs/models.md")


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_is_in_the_table(kernel):
    assert re.search(rf"[`/]{kernel}`", page("docs/gpu.md"))


@pytest.mark.parametrize("name", [*body._FIELDS, *body._V4_RATIOS])
def test_every_body_is_listed(name):
    assert re.search(rf"[`| ]{name}[`|]", page("docs/benchmarks.md"))


@pytest.mark.parametrize("name", sorted(KINDS | DRAFTERS))
def test_every_kind_of_drafter_is_in_the_table(name):
    assert re.search(rf"\b{name}\b", page("docs/speculation.md"))


@pytest.mark.parametrize(
    "family", ["DeepSeek-V3", "DeepSeek-V4", "GLM-4.5", "MiMo", "Qwen3-Next", "Qwen3.5"]
)
def test_families_with_modules_are_named_wherever_mtp_is_explained(family):
    [row] = [line for line in page("README.md").splitlines() if line.startswith("| `mtp` |")]
    [short] = [
        line for line in page("docs/speculation.md").splitlines() if line.startswith("| `mtp` |")
    ]
    [today] = re.findall(r"today is so for\s+([^;:]*?)\. ", page("docs/speculation.md"))
    assert family in row
    assert family in short
    assert family in today


def test_the_sizes_of_the_shipped_head_are_given():
    head = shipped_head(DEFAULT_ALIAS)
    assert head is not None
    for tree in (head.usual.tree, head.usual.narrow):
        said = f"{tree.steps} steps, topk {tree.topk}, {tree.nodes} nodes"
        assert said in page("docs/speculation.md")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_of_llm_is_explained(name):
    assert f"`{name}`" in page("docs/use.md")


@pytest.mark.parametrize("name", [each.name for each in fields(ModelFlags)])
def test_every_flag_of_the_model_stands_beside_its_argument(name):
    assert f"`--{name.replace('_', '-')}`" in page("docs/use.md")


@pytest.mark.parametrize("name", [*VARIABLES, *EXTRAS])
def test_every_variable_and_every_extra_is_explained(name):
    assert f"`{name}`" in page("docs/use.md")


@pytest.mark.parametrize("name", SERVER_FLAGS)
def test_every_flag_of_the_server_is_explained(name):
    assert re.search(rf"`--(no-)?{name.replace('_', '-')}`", page("docs/serve.md"))


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_explained(name):
    assert re.search(rf"`{name}(_total)?[`{{]", page("docs/serve.md"))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_in_the_table(name):
    assert f"| `outrider bench {name}` |" in page("docs/benchmarks.md")


@pytest.mark.parametrize("name", LAB)
def test_every_benchmark_of_the_lab_is_in_the_table(name):
    assert f"| `python -m benchmarks {name}` |" in page("docs/benchmarks.md")


def test_the_readme_has_the_numbers_of_its_picture():
    said = {float(number) for number in re.findall(r"\d+\.\d+", page("README.md"))}
    for case in json.loads(page("benchmarks/readme_numbers.json"))["steady"]:
        assert set(case["times_floor"]) <= said
        for engine in case["engines"].values():
            assert set(engine["step_ms"]) <= said


def test_the_readme_is_short():
    assert len(page("README.md").splitlines()) < 120


def test_a_word_has_one_row_in_the_glossary():
    rows = re.findall(r"^\| ([^|]+) \|", page("docs/glossary.md"), flags=re.MULTILINE)
    words = Counter(word.strip() for row in rows for word in row.split(","))
    del words["word"]  # the heading of each table
    assert len(words) > 50
    assert [word for word, count in words.items() if count > 1] == []


def test_every_anchor_in_a_link_is_a_heading():
    for place in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", place.read_text()):
            there = place.parent / target if target else place
            headings = re.findall(r"^#+ (.*)$", there.read_text(), flags=re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings]
            assert anchor in anchors, f"{place.name} links to {target}#{anchor}"


def test_every_decision_has_a_number_of_its_own():
    numbers = Counter(path.name[:4] for path in (ROOT / "docs/decisions").glob("*.md"))
    assert {number for number, count in numbers.items() if count > 1} == set()
