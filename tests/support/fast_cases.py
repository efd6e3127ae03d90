"""Which cases of a parametrised test are fast: n by the marker `fast_cases(n)`, else a few."""

import random
from collections import defaultdict

import pytest

FAST_CASES = 4  # of a test without the marker
_ALL_CASES = {"arch", "gpu"}  # folders: of quick tests, and of tests that are run on a GPU


def _num_fast(item: pytest.Item) -> int:
    marker = item.get_closest_marker("fast_cases")
    return FAST_CASES if marker is None else marker.args[0]


def _is_sampled(item: pytest.Item) -> bool:
    return "[" in item.nodeid and item.path.parent.name not in _ALL_CASES


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases = defaultdict(list)
    for item in filter(_is_sampled, items):
        cases[item.nodeid.partition("[")[0]].append(item)
    for name, same in cases.items():
        fast = random.Random(name).sample(same, min(_num_fast(same[0]), len(same)))
        for item in same:
            if item not in fast:
                item.add_marker(pytest.mark.slow)
