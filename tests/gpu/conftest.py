"""Everything in this folder needs a CUDA device."""

from pathlib import Path

import pytest
import torch

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect this folder where there is no device: skipping 2,000 tests takes seconds."""
    if torch.cuda.is_available():
        return
    config.hook.pytest_deselected(items=[item for item in items if item.path.parent == _HERE])
    items[:] = [item for item in items if item.path.parent != _HERE]
