"""Questions whose answer is a number, from a JSONL file in the form of GSM8K."""

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.hub.jsonl import numbered_lines

OWN_TASK = Path(__file__).with_name("arithmetic.jsonl")
INSTRUCTION = "Solve this step by step. End with the answer, as a number."

# Thousands may have commas. A minus sign after a digit is a subtraction.
_NUMBER = re.compile(r"(?:(?<!\d)-)?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question, its worked answer, and the number at the end of that."""

    question: str
    answer: str
    expected: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyTask:
    """The problems to solve, and those that are shown solved before each of them."""

    name: str
    problems: tuple[Problem, ...]
    examples: tuple[Problem, ...]


def last_number(text: str) -> Decimal | None:
    """The last number of a text; None if it has none."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def read_problems(path: Path, flag: str) -> tuple[Problem, ...]:
    """Every line of a file: `{"question": "...", "answer": "... #### 42"}`, other keys ignored."""
    try:
        numbered = list(numbered_lines(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path} ({error}); check {flag}") from error
    return tuple(_problem(line, f"{path} line {number}") for number, line in numbered)


def choose_task(path: Path, *, examples: Path | None, shots: int, limit: int) -> AccuracyTask:
    """The task with `shots` examples: the first of their file, or of the task, which are then not
    asked. `limit` problems are asked; 0 asks all.
    """
    if examples is not None and not shots:
        raise ConfigError("--examples are shown with --shots N only; give a number")
    problems = read_problems(path, "--task")
    shown = problems if examples is None else read_problems(examples, "--examples")
    if shots > len(shown):
        source, flag = (path, "--task") if examples is None else (examples, "--examples")
        raise ConfigError(
            f"{source} has {len(shown)} problems, and --shots wants {shots}; lower it or give "
            f"{flag} a longer file"
        )
    asked = problems[shots:] if examples is None else problems
    if not asked:
        raise ConfigError(f"{path} has no problem to ask; add lines, or lower --shots")
    chosen = asked[:limit] if limit else asked
    return AccuracyTask(name=path.name, problems=chosen, examples=shown[:shots])


def _problem(line: str, place: str) -> Problem:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} is not JSON ({error}); fix the line") from error
    fields = value if isinstance(value, dict) else {}
    question, answer = fields.get("question"), fields.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = str(answer)
    if not isinstance(question, str) or not question or not isinstance(answer, str):
        raise ConfigError(f'{place}: write {{"question": "...", "answer": "... #### 42"}}')
    expected = last_number(answer)
    if expected is None:
        raise ConfigError(f"{place} has no number in its answer; end it with one")
    return Problem(question=question, answer=answer, expected=expected)
