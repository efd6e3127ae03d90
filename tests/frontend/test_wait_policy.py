"""Idle threads of torch spin for a moment and then sleep, whichever command imports torch."""

import os
import subprocess
import sys

import pytest

from outrider.config.threads import SPINS

_IMPORT = """
import os
from outrider.frontend.interrupts import import_torch
import_torch()
print(os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({}, f"None {SPINS}"),
        ({"OMP_WAIT_POLICY": "active"}, "active None"),
        ({"GOMP_SPINCOUNT": "7"}, "None 7"),
    ],
)
def test_torch_is_imported_with_our_policy_unless_the_user_chose_one(chosen, found):
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT],
        capture_output=True,
        text=True,
        env=environment | chosen,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == found
