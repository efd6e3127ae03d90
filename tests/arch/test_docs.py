"""Lists in the docs name everything there is: who adds a part adds its word."""

import re
from collections import Counter
from pathlib import Path

import pytest

from outrider.bench.gpu import body
from outrider.models.registry import FAMILIES
from outrider.runtime import drafts, stream_draft
from outrider.store.aliases import DEFAULT_ALIAS
from outrider.store.shipped import shipped_head

ROOT = Path(__file__).parents[2]
KERNELS = sorted(
    path.name for path in (ROOT / "outrider/kernels").glob("*.py") if path.stem != "__init__"
)
KINDS = {name for place in (drafts, stream_draft) for name in vars(place) if name.endswith("Draft")}
DRAFTERS = {"NullDrafter", "NgramDrafter", "ModelDrafter", "ModuleDrafter"}


def page(name):
    return (ROOT / name).read_text()


@pytest.mark.parametrize("architecture", [*FAMILIES, "DeepseekV4ForCausalLM"])
def test_every_architecture_is_listed(architecture):
    assert f"`{architecture}`" in page("docs/models.md")


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_stands_beside_its_law(kernel):
    assert re.search(rf"[`/]{kernel}`", page("docs/gpu.md"))


@pytest.mark.parametrize("name", [*body._FIELDS, *body._V4_RATIOS])
def test_every_body_is_listed(name):
    assert re.search(rf"[`| ]{name}[`|]", page("docs/benchmarks.md"))


@pytest.mark.parametrize("name", sorted(KINDS | DRAFTERS))
def test_every_kind_of_drafter_is_in_the_table(name):
    assert re.search(rf"\b{name}\b", page("docs/speculation.md"))


@pytest.mark.parametrize("family", ["DeepSeek-V3", "DeepSeek-V4", "GLM-4.5", "MiMo"])
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
    [head] = shipped_head(DEFAULT_ALIAS)
    said = f"{head.steps} steps, topk {head.topk}, {head.nodes} nodes"
    assert said in page("docs/speculation.md")


def test_a_word_has_one_row_in_the_glossary():
    rows = re.findall(r"^\| ([^|]+) \|", page("docs/glossary.md"), flags=re.MULTILINE)
    words = Counter(word.strip() for row in rows for word in row.split(","))
    assert len(words) > 50
    assert [word for word, count in words.items() if count > 1] == []
