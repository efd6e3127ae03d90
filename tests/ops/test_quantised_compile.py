"""The kernels that read quantised weights, compiled for a Hopper here: codes arrive in time."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


@pytest.mark.slow
def test_codes_are_copied_ahead_and_widened_in_registers():
    # A process of its own, because kernels are interpreted in this one.
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "support.quantised_compile", "e4m3", "int8", "int4", "mxfp4"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kernels) == 24
    for kernel in kernels:
        assert kernel["spilled_bytes"] == 0, kernel
        assert kernel["copies"] > 0, kernel
        # A thread reads its codes in pieces of 16 bytes, and gives none to another thread.
        assert kernel["reads"] >= 2, kernel
    for plain, scaled in zip(kernels[12:18], kernels[18:], strict=True):
        assert scaled["moves"] <= plain["moves"], scaled  # scales of small groups move none
