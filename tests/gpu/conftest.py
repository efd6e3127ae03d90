"""Everything in this folder needs a CUDA device and says so when there is none."""

from pathlib import Path

import pytest
import torch

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a device a file skips as one test: skipping 2,000 of them takes seconds."""
    if torch.cuda.is_available():
        return
    first: dict[Path, pytest.Item] = {}
    for item in items:
        if item.path.parent == _HERE:
            first.setdefault(item.path, item)
    for item in first.values():
        item.add_marker(pytest.mark.skip(reason="this file needs a CUDA device"))
    others = [each for each in items if each.path in first and each is not first[each.path]]
    config.hook.pytest_deselected(items=others)
    items[:] = [each for each in items if each.path not in first or each is first[each.path]]
