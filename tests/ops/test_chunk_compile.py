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
    words = ["64:0:bf16", "128:0:bf16", "256:0:bf16", "256:1024:bf16", "128:0:fp8e4nv"]
    words += ["64:128:bf16:sinks"]
    command = [sys.executable, "-m", "support.hopper_chunks", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kernels) == len(words)
    for kernel in kernels:
        assert kernel["shared_bytes"] <= 128 << 10  # as docs/gpu.md says
        assert kernel["spilled_bytes"] == 0
        assert "serialized" not in kernel["log"]
