"""Prompts by kind: acceptance depends on the kind of text more than on anything else."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.bench.texts import read_texts
from outrider.hub.jsonl import numbered_lines

# The kinds of our development prompts, by source; another source is its own kind.
_KINDS = {
    "mbpp": "code",
    "humaneval": "code",
    "gsm8k_test": "math",
    "alpaca": "chat",
    "qa": "chat",
    "user_oriented": "chat",
    "sum": "summary",
}
_NO_SOURCE = "file"

_QUEUE = """\
class Queue:
    def __init__(self, limit):
        self.limit = limit
        self.items = []

    def push(self, item):
        if len(self.items) >= self.limit:
            raise OverflowError("the queue is full")
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("the queue is empty")
        return self.items.pop(0)
"""
_REPORT = """\
def report(orders):
    total = 0
    for order in orders:
        price = order["price"] * order["count"]
        print(order["name"], order["count"], price)
        total += price
    print("total", total)
    return total
"""
_STYLE = """\
.card { padding: 8px; margin: 4px; border: 1px solid black; }
.card-title { font-size: 16px; font-weight: bold; color: black; }
.card-text { font-size: 12px; color: black; }
.card-link { font-size: 12px; color: blue; text-decoration: underline; }
"""
_HARBOUR = """\
The harbour of Ostrand was rebuilt in 1962 after the great flood. The new sea wall is four metres \
higher than the old one and stretches from the lighthouse to the fish market. For twenty years the \
town paid for it with a tax on every boat that used the harbour. In 1982 the tax was abolished, \
and since then the repairs have been paid for by the county. The wall was last inspected in 2019, \
when divers found cracks below the waterline near the fish market. The county has promised to \
close the cracks before the next winter, but the work has not begun."""
_BEES = """\
Honey bees tell each other where to find food by dancing. A bee that has found flowers returns to \
the hive and runs in a straight line while shaking its body, then circles back and runs again. The \
angle of the line against the vertical is the angle between the flowers and the sun. The length of \
the run says how far away the flowers are: about one second of shaking stands for one kilometre. \
Bees that follow the dance leave the hive and fly in the right direction, even when the sun is \
hidden behind clouds, because they can see the polarisation of the light."""
_MEETING = """\
Anna: The release is planned for Friday, but two tests still fail on Windows. Ben: I can look at \
them tomorrow morning; I think both come from the path separator. Anna: Good. Carla, is the manual \
ready? Carla: All chapters but the one on backups. I need the new screenshots for it. Ben: I will \
send you the screenshots tonight. Anna: Then we keep Friday. If the tests still fail on Thursday \
at noon, we move the release to Monday. Carla: Agreed. Ben: Agreed."""

_OWN = {
    "edit": (
        f"Rename the method pop to take in this code and repeat all of it:\n\n{_QUEUE}",
        f"Repeat this code exactly, with the parameter orders renamed to sales:\n\n{_REPORT}",
        f"Repeat this style sheet with every black replaced by gray:\n\n{_STYLE}",
    ),
    "summary": (
        f"Summarise this text in three sentences.\n\n{_HARBOUR}",
        f"Summarise this text in three sentences.\n\n{_BEES}",
        f"List who does what until when in this conversation.\n\n{_MEETING}",
    ),
    "code": (
        "Write a Python function that returns the longest common prefix of a list of strings.",
        "Write a SQL query that lists the three customers with the highest total of orders.",
    ),
    "math": (
        "A tank holds 240 litres and loses 5 litres an hour. When is a third of it left?",
        "Tom reads 12 pages a day and Eva 18. How many days until they have read 450 together?",
    ),
    "chat": (
        "What should I pack for a weekend of hiking in the rain?",
        "Explain to a child why ships made of steel do not sink.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A text and its kind."""

    kind: str
    text: str


def choose_prompts(files: Sequence[Path], *, limit: int) -> tuple[Prompt, ...]:
    """At most `limit` prompts of each kind: those of the files, and ours where they have none."""
    given = [prompt for path in files for prompt in _read_prompts(path)]
    kinds = {prompt.kind for prompt in given}
    own = [Prompt(kind=kind, text=text) for kind in _OWN for text in _OWN[kind]]
    prompts = [*given, *(prompt for prompt in own if prompt.kind not in kinds)]
    by_kind = {prompt.kind: [p for p in prompts if p.kind == prompt.kind] for prompt in prompts}
    return tuple(prompt for kind in sorted(by_kind) for prompt in by_kind[kind][:limit])


def _read_prompts(path: Path) -> list[Prompt]:
    texts = read_texts(path)  # checks every line
    lines = [line for _, line in numbered_lines(path)]
    pairs = zip(texts, map(_source, lines), strict=True)
    return [Prompt(kind=_KINDS.get(source, source), text=text) for text, source in pairs]


def _source(line: str) -> str:
    value = json.loads(line)
    return str(value.get("source", _NO_SOURCE)) if isinstance(value, dict) else _NO_SOURCE
