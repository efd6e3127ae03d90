"""Prompts whose answers repeat texts: edits, agent loops, repeated questions. Made from a file.

python -m benchmarks.repeated_prompts dev.jsonl repeated.jsonl
"""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_EDITED = 12
_LOOPS, _TURNS = 4, 4
_QUESTIONS, _WAYS = 12, ("{}", "{}", "Please answer this question. {}")


def main(source: Path, target: Path) -> None:
    """Write the prompts of all kinds, each with its kind as its source."""
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    prompts = [*_edits(rows), *_agent_loops(rows), *_repeated_questions(rows)]
    target.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))


def _edits(rows: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Copy a program with one name changed."""
    for row in islice(_of(rows, "humaneval"), _EDITED):
        program = row["prompt"].partition("\n\n")[2]
        name = program.partition("def ")[2].partition("(")[0]
        request = f"Rename the function {name} to solve_it. Repeat all of the code.\n\n"
        yield {"source": "edits", "prompt": f"{request}```python\n{program}```"}


def _agent_loops(rows: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Every turn has the turns before it in its prompt, and asks for one more in the same form."""
    for row in islice(_of(rows, "sum"), _LOOPS):
        sentences = [each.strip() for each in row["prompt"].split(". ") if len(each) > 20]
        turns = [
            f"Step {i}\nThought: I should read the next sentence of the report.\n"
            f'Action: read_sentence(document="report", index={i})\nObservation: {sentence}.\n'
            for i, sentence in enumerate(sentences[: _TURNS + 1], start=1)
        ]
        for count in range(1, _TURNS + 1):
            history = "".join(turns[: count + 1])
            yield {
                "source": "agent loops",
                "prompt": f"{history}\nWrite step {count + 2} in the same form.",
            }


def _repeated_questions(rows: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Every question twice in the same words, then in other words."""
    questions = [row["prompt"] for row in islice(_of(rows, "gsm8k_test"), _QUESTIONS)]
    for way in _WAYS:
        for question in questions:
            yield {"source": "repeated questions", "prompt": way.format(question)}


def _of(rows: list[dict[str, str]], source: str) -> Iterator[dict[str, str]]:
    return (row for row in rows if row["source"] == source)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
