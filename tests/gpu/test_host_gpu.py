"""What steps cost the host on a GPU: copies and marks are real there, and nothing else runs."""

import json

from benchmarks.__main__ import run


def test_the_host_is_measured_on_a_gpu_that_runs_nothing(tmp_path):
    target = tmp_path / "out.json"
    flags = ["--rows", "1,70", "--tokens", "20", "--device", "cuda", "--profile"]
    assert run(["host", *flags, "--json", str(target)]) == 0
    costs = json.loads(target.read_text())["costs"]
    assert [(cost["way"], cost["rows"]) for cost in costs] == [
        ("plain", 1),
        ("plain", 70),
        ("chain of 5", 1),
        ("chain of 5", 70),
    ]
    assert all(len(cost["steps_s"]) == 20 for cost in costs)
