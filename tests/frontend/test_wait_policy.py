"""Idle threads of torch sleep on a busy machine, whichever command imports torch."""

import subprocess
import sys

import pytest

_IMPORT = """
import os
os.environ.pop("OMP_WAIT_POLICY", None)
os.environ.pop("GOMP_SPINCOUNT", None)
os.getloadavg = lambda: ({load}, 0.0, 0.0)  # of the last minute
from outrider.frontend.interrupts import import_torch
import_torch()
print(os.environ.get("OMP_WAIT_POLICY"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("load", "policy"), [(1000.0, "passive"), (0.0, "None")])
def test_torch_is_imported_with_the_policy_for_the_load_of_the_machine(load, policy):
    code = _IMPORT.format(load=load)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == policy
