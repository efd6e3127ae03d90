"""Failing, lost and hanging steps on a real device."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import TREES, sampling_of
from support.recovery import check_recovery, failed

from outrider.runtime.watchdog import Watchdog


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    from support.model_set import make_models

    return make_models(tmp_path_factory.mktemp("models"), "cuda")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("executor", ["eager", "graph", "breakable"])
@pytest.mark.parametrize("where", ["at_submit", "at_wait"])
def test_the_others_get_the_tokens_they_would_have_had(models, depth, executor, where):
    shape = Shape(device="cuda", depth=depth, pad=4, max_rows=2, executor=executor)
    draft = models.draft("relative", TREES["chain"])
    _, outputs = check_recovery(models, shape, draft, **{where: {4, 9}})
    assert failed(outputs)[:2] == ["r0", "r1"]


LOSE_THE_DEVICE = """
import os, sys, tempfile
from pathlib import Path
import torch
sys.path.insert(0, {tests!r})
from support.engines import Shape, engine_of, make_submission
from support.matrix import sampling_of
from support.tiny import save_tiny
from outrider.errors import CapacityError
from outrider.models.decoder_loader import load_decoder

folder = Path(tempfile.mkdtemp())
save_tiny("llama", folder)
model = load_decoder(folder, dtype="float32", device=torch.device("cuda"))
engine = engine_of(model, Shape(device="cuda", max_rows=1, depth=1))
for name in ("runs", "waits"):
    engine.add(make_submission(name, [3, 4, 5], sampling_of("greedy", 0)))
engine.step()
torch.zeros(4, device="cuda")[torch.tensor([10**9], device="cuda")]  # an assert on the device
updates = []
while engine.has_work:
    updates += engine.step()
last = {{each.request_id: each for each in updates}}
assert {{each.finish for each in last.values()}} == {{"error"}}, last
assert "restart the process" in last["waits"].reason, last
try:
    engine.add(make_submission("later", [3], sampling_of("greedy", 0)))
except CapacityError as error:
    print("refused:", error, flush=True)
    os._exit(0)  # what a lost device leaves behind cannot be taken down in order
"""


def test_a_device_error_that_stays_fails_all_requests_and_stops_the_engine():
    source = LOSE_THE_DEVICE.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "restart the process" in done.stdout


def test_a_kernel_that_runs_too_long_is_reported(models, caplog):
    engine = engine_of(models.target, Shape(device="cuda"))
    engine._runner.watchdog = Watchdog(timeout_s=0.05)
    run_all(
        engine, [make_submission("before", [5, 4, 3], sampling_of("greedy", 0), max_tokens=1)]
    )  # compiles
    engine.add(make_submission("a", [3, 4, 5], sampling_of("greedy", 0), max_tokens=1))
    with caplog.at_level(logging.ERROR), engine._runner.stream.active():
        torch.cuda._sleep(2 * 10**9)  # cycles: about a second
        (update,) = engine.step()
    assert update.finish == "length"
    assert engine._runner.watchdog.num_hung == 1
    assert "seems to hang" in caplog.text
