"""The parsed flags of `outrider bench acceptance`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.bench.texts import read_texts
from outrider.config.draft_config import DraftConfig, TreeSize
from outrider.errors import ConfigError
from outrider.hub.jsonl import numbered_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceQuestion:
    """A prompt and where it comes from."""

    source: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceArgs:
    """Every drafter is measured with every tree at every temperature, on every question."""

    drafts: dict[str, DraftConfig]  # by the name to show
    trees: tuple[TreeSize, ...]
    temperatures: tuple[float, ...]
    questions: tuple[AcceptanceQuestion, ...]
    max_tokens: int
    rows: int  # answered at a time


def parse_tree(text: str) -> TreeSize:
    """`4` is a chain of four; `4x4x16` is four steps deep, four children a node, 16 nodes."""
    parts = text.lower().split("x")
    if len(parts) not in (1, 3) or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--tree {text} is neither STEPS nor STEPSxTOPKxNODES; such as 4x4x16")
    steps, *rest = map(int, parts)
    topk, nodes = rest or (1, steps + 1)
    return TreeSize(steps=steps, topk=topk, nodes=nodes)


def name_of(tree: TreeSize) -> str:
    if tree.topk == 1:
        return f"chain of {tree.steps}"
    return f"{tree.steps} x {tree.topk}, {tree.nodes} nodes"


def choose_questions(path: Path, *, limit: int) -> tuple[AcceptanceQuestion, ...]:
    """At most `limit` prompts of each source, the first ones; 0 takes all."""
    texts = read_texts(path)  # checks every line
    lines = [line for _, line in numbered_lines(path)]
    taken: dict[str, int] = {}
    questions = []
    for text, line in zip(texts, lines, strict=True):
        source = _source(line)
        taken[source] = taken.get(source, 0) + 1
        if not limit or taken[source] <= limit:
            questions.append(AcceptanceQuestion(source=source, text=text))
    return tuple(questions)


def parse_temperatures(values: Sequence[float]) -> tuple[float, ...]:
    for value in values:
        if not 0 <= value <= 2:
            raise ConfigError(f"--temperature must be between 0 and 2, got {value:g}")
    return tuple(dict.fromkeys(values))


def _source(line: str) -> str:
    value = json.loads(line)
    return str(value.get("source", "file")) if isinstance(value, dict) else "file"
