"""The marker `fast_cases(n)`: n cases of a test are fast, the others are slow."""

import random
from collections import defaultdict

import pytest


def _is_sampled(item: pytest.Item) -> bool:
    """Tests on a GPU run all their cases."""
    return item.path.parent.name != "gpu" and item.get_closest_marker("fast_cases") is not None


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases = defaultdict(list)
    for item in filter(_is_sampled, items):
        cases[item.nodeid.partition("[")[0]].append(item)
    for name, same in cases.items():
        (num_fast,) = same[0].get_closest_marker("fast_cases").args
        fast = random.Random(name).sample(same, min(num_fast, len(same)))
        for item in same:
            if item not in fast:
                item.add_marker(pytest.mark.slow)
