import pytest
import torch


def pytest_collection_modifyitems(items):
    """Everything in this folder needs a CUDA device and says so when there is none."""
    for item in items:
        if "tests/gpu" in str(item.path) and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
