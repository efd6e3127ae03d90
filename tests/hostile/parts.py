"""The parts of the campaign. A part is imported when it runs: each needs other packages."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

NAMES = ("lives", "files", "server", "json", "grammars")
# Seconds without a sign of life after which a case counts as hanging. The first one loads models.
PATIENCE_S = {"lives": 180.0, "files": 180.0, "server": 600.0, "json": 240.0, "grammars": 240.0}


@dataclass
class CaseReport:
    """What one case did, as counts, and what went wrong, one line each."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


RunCase = Callable[[int], CaseReport]  # the seed of the case decides everything


def load_part(name: str) -> RunCase:
    """The function that runs a case of this part."""
    run_case: RunCase = import_module(f"hostile.{_MODULES[name]}").run_case
    return run_case


_MODULES = {
    "lives": "engine_lives",
    "files": "broken_files",
    "server": "faulty_servers",
    "json": "odd_json",
    "grammars": "odd_grammars",
}
