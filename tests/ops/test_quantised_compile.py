"""The kernels that read quantised weights, compiled for a Hopper here: codes arrive in time."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")
from outrider.ops.gpu_facts import HOPPER_SHARED


def compiled(module, *words):
    """What a module says of its kernels, in a process where kernels are not interpreted."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_codes_are_copied_ahead_and_widened_in_registers():
    kernels = compiled("support.quantised_compile", "e4m3", "int8", "int4", "mxfp4")
    assert len(kernels) == 24
    for kernel in kernels:
        assert kernel["spilled_bytes"] == 0, kernel
        assert kernel["copies"] > 0, kernel
        # A thread reads its codes in pieces of 16 bytes, and gives none to another thread.
        assert kernel["reads"] >= 2, kernel
    for plain, scaled in zip(kernels[12:18], kernels[18:], strict=True):
        assert scaled["moves"] <= plain["moves"], scaled  # scales of small groups move none


@pytest.mark.slow
def test_warps_that_take_turns_keep_sums_in_registers_and_wait_for_no_single_product():
    kinds, rows = ("e4m3", "int8", "int4", "e2m1"), (32, 64, 128)
    words = [f"{kind}:{num}" for kind in kinds for num in rows]
    kernels = compiled("support.turns_compile", "e4m3:16", *words)
    assert len(kernels) == 39
    for kernel in kernels:
        assert kernel["shared_bytes"] <= HOPPER_SHARED, kernel
        assert kernel["spilled_bytes"] == 0, kernel
        assert not kernel["is_serialized"], kernel
        # Warps wait for registers until three groups of four have no more than they began with.
        least, others, second, first, alone = kernel["asked"]
        assert least + second + first <= 3 * kernel["registers"], kernel
        assert alone + 2 * others <= 3 * kernel["registers"], kernel
