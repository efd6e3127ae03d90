"""Which cases of a parametrised test run when.

Fast: n by the marker `fast_cases(n)`, else one. Slow: those with which every value of a parameter
meets every value of every other parameter. All others have the marker `matrix`, as has a test that
is a matrix by itself; they run only where `-m` names that marker.
"""

import random
from collections import defaultdict

import pytest

from support.all_pairs import cover_pairs

FAST_CASES = 1  # of a test without the marker
_ALL_CASES = {"arch", "gpu"}  # folders: of quick tests, and of tests that are run on a GPU


def _num_fast(item: pytest.Item) -> int:
    marker = item.get_closest_marker("fast_cases")
    return FAST_CASES if marker is None else marker.args[0]


def _is_sampled(item: pytest.Item) -> bool:
    is_matrix = item.get_closest_marker("matrix") is not None
    return "[" in item.nodeid and item.path.parent.name not in _ALL_CASES and not is_matrix


def _mark_cases(name: str, same: list[pytest.Function]) -> None:
    """Mark all cases of one test but the fast ones."""
    fast = random.Random(name).sample(same, min(_num_fast(same[0]), len(same)))
    others = [item for item in same if item not in fast]
    chosen, rest = ([item.callspec.params for item in items] for items in (fast, others))
    slow = cover_pairs(chosen, rest, seed=name)
    for index, item in enumerate(others):
        item.add_marker(pytest.mark.slow if index in slow else pytest.mark.matrix)


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases = defaultdict(list)
    for item in filter(_is_sampled, items):
        assert isinstance(item, pytest.Function)
        cases[item.nodeid.partition("[")[0]].append(item)
    for name, same in cases.items():
        _mark_cases(name, same)
    if "matrix" not in config.option.markexpr:
        matrix = [item for item in items if item.get_closest_marker("matrix") is not None]
        config.hook.pytest_deselected(items=matrix)
        items[:] = [item for item in items if item.get_closest_marker("matrix") is None]
