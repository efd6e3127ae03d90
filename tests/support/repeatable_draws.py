"""Every test draws the same numbers on every run, alone or after others.

A request without a seed gets a random one, and a test may draw from a global generator. All of them
start anew at every test, from its name. Hypothesis chooses the same examples on every run; with
`--hypothesis-profile default` it chooses others.
"""

import random
import secrets
import zlib

import hypothesis
import numpy as np
import pytest
import torch

hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)  # before the fixtures of a module, which may draw too
def pytest_runtest_setup(item: pytest.Item) -> None:
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    secrets.randbits = random.Random(seed).getrandbits  # the seed of a request that has none
