"""The attention kernel of chunks, compiled for a Hopper here: its products overlap."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


@pytest.mark.slow
def test_the_kernel_of_chunks_keeps_its_sums_in_registers_and_its_products_in_flight():
    # A process of its own, because kernels are interpreted in this one.
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "support.hopper_chunks", "64:0", "128:0", "256:0", "256:1024"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kernels) == 4
    for kernel in kernels:
        assert kernel["shared_bytes"] <= 128 << 10  # as docs/gpu.md says
        assert kernel["spilled_bytes"] == 0
        assert "serialized" not in kernel["log"]
