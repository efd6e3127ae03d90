"""`python -m tests.mutation`: which of our own mistakes do the tests notice?

Cosmic Ray lists the mutants of the engine, the prefix cache, speculation and steps. A sample of
them is tested, each in a forked child that imports the mutated source instead of the file.
"""

import argparse
import difflib
import importlib.machinery
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import hypothesis  # noqa: F401 - imported once, for all children
import numpy  # noqa: F401
import pytest
import safetensors.torch  # noqa: F401
import torch
import transformers  # noqa: F401
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parents[2]
MAX_S = 400.0  # for the tests of one mutant; a mutant that runs on is noticed
# The tests that should notice, the quickest first. The first match decides.
TESTS = {
    "outrider/engine/prefix_cache": ["tests/engine/prefix_cache", "tests/engine"],
    "outrider/engine": ["tests/engine", "tests/frontend/test_frontend.py"],
    "outrider/spec": ["tests/spec", "tests/equality/test_ngram_equality.py", "tests/equality"],
    "outrider/step": ["tests/step", "tests/equality/test_matrix.py", "tests/equality"],
}
# Annotations such as `X | None` are no code, and enums and None are equal only to themselves.
SKIPPED = ("BitOr", "RemoveDecorator", "ExceptionReplacer", "_Is_Eq", "_IsNot_NotEq")


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: Path
    operator: str
    occurrence: int

    def source(self) -> str:
        operator = get_operator(self.operator)()
        code = MutationVisitor.mutate_code(self.path.read_text(), operator, self.occurrence)
        assert code is not None, "it was listed"
        return code

    def diff(self) -> str:
        before, after = self.path.read_text().splitlines(), self.source().splitlines()
        lines = difflib.unified_diff(before, after, lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


def list_mutants(folder: Path) -> list[Mutant]:
    """All mutants of a package; one that does not compile is none."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        nodes = list(ast_nodes(get_ast(path.read_text())))
        for name in operator_names():
            if any(word in name for word in SKIPPED) or get_operator(name).arguments():
                continue
            operator = get_operator(name)()
            places = sum(1 for node in nodes for _ in operator.mutation_positions(node))
            found += [Mutant(path, name, occurrence) for occurrence in range(places)]
    return found


def is_noticed(mutant: Mutant, log: Path) -> bool:
    """Whether a test fails, crashes or hangs with this mutant."""
    name = str(mutant.path.relative_to(ROOT))
    tests = next(tests for prefix, tests in TESTS.items() if name.startswith(prefix))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = _run_tests(mutant, tests, log)
        finally:
            os._exit(code)
    end = time.monotonic() + MAX_S
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status != 0
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def _run_tests(mutant: Mutant, tests: list[str], log: Path) -> int:
    os.setsid()
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    source, get_code = mutant.source(), importlib.machinery.SourceFileLoader.get_code

    def mutated_code(self, fullname):  # not from the cache of compiled files
        if self.path == str(mutant.path):
            return compile(source, self.path, "exec")
        return get_code(self, fullname)

    importlib.machinery.SourceFileLoader.get_code = mutated_code
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *dict.fromkeys(tests)]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--num", type=int, default=150, help="mutants to test")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--first", type=int, default=0, help="go on at this one of the sample")
    parser.add_argument("--minutes", type=float, default=600, help="stop after so many")
    parser.add_argument("--only", default="", help="a part of the path, such as outrider/spec")
    args = parser.parse_args()
    assert not any(name.startswith("outrider") for name in sys.modules), "children import it"
    torch.set_num_threads(1)  # children are forked
    folders = [ROOT / name for name in ("outrider/engine", "outrider/spec", "outrider/step")]
    mutants = [m for each in folders for m in list_mutants(each) if args.only in str(m.path)]
    sample = random.Random(args.seed).sample(mutants, min(args.num, len(mutants)))
    end, tested, survivors = time.monotonic() + args.minutes * 60, 0, 0
    for mutant in sample[args.first :]:
        if time.monotonic() > end:
            break
        with tempfile.TemporaryDirectory() as scratch:
            noticed = is_noticed(mutant, Path(scratch) / "log")
        tested, survivors = tested + 1, survivors + (not noticed)
        word = "killed" if noticed else "SURVIVED"
        print(f"{word} {mutant.path.relative_to(ROOT)} {mutant.operator} {mutant.occurrence}")
        print("" if noticed else mutant.diff(), flush=True)
    print(f"{tested} of {len(mutants)} mutants tested, seed {args.seed}: {survivors} survived")
    return int(survivors > 0)


sys.exit(main())
