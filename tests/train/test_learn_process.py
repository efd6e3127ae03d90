"""A learner stops when a request comes, also inside of a step of training."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import zmq
from support.heads import write_head
from support.tiny import save_tiny
from support.training import DEVICE

from outrider.config.log_settings import LogSettings
from outrider.models.model_config import read_config
from outrider.server.learner_messages import (
    Busy,
    Idle,
    LearnerConfig,
    LearnStatus,
    LearnText,
    StopLearning,
    decode_from_learner,
    encode_learner,
)
from outrider.train import learn_process, paused_ops
from outrider.train.learn_process import LearnerProcess
from outrider.train.trainer import Trainer


def next_status(socket, wanted) -> LearnStatus:
    """The next report for which `wanted` is true."""
    while socket.poll(60_000):
        message = decode_from_learner(socket.recv())
        if isinstance(message, LearnStatus) and wanted(message):
            return message
    raise AssertionError("the learner reports nothing")


def config_of(root: Path) -> LearnerConfig:
    save_tiny("llama", root / "target")
    write_head(root / "head", read_config(root / "target"), dialect="sglang")
    return LearnerConfig(
        endpoint="",
        target_folder=str(root / "target"),
        head_folder=str(root / "head"),
        learn_folder=str(root / "versions"),
        version=0,
        device="cpu",
        buffer_bytes=10**6,
        log=LogSettings(),
    )


def test_no_operation_runs_between_a_request_and_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(learn_process, "_QUIET_S", 0.01)
    monkeypatch.setattr(learn_process, "_LOOK_S", 0.0)
    monkeypatch.setattr(learn_process, "_REPORT_S", 0.0)
    context = zmq.Context()
    ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    ours.bind("inproc://learner")
    theirs.connect("inproc://learner")
    learner = LearnerProcess(config_of(tmp_path), theirs)
    ops, at_request, is_inside = [0], [], threading.Event()
    run_op, take_step = paused_ops.BetweenOps.__torch_dispatch__, Trainer._weighted_sum

    def counted(mode, *args, **how):
        ops[0] += 1
        return run_op(mode, *args, **how)

    def request_comes(trainer, losses, batch):
        """Between forward and backward of the third step."""
        if learner._learner.num_steps == 2 and not at_request:
            is_inside.set()
            assert theirs.poll(60_000)
            at_request.append(ops[0])
        return take_step(trainer, losses, batch)

    monkeypatch.setattr(paused_ops.BetweenOps, "__torch_dispatch__", counted)
    monkeypatch.setattr(Trainer, "_weighted_sum", request_comes)
    for number in range(16):
        text = tuple((3 + 5 * number + 7 * step) % 60 for step in range(40))
        ours.send(encode_learner(LearnText(text, 6, 0.0)))
    ours.send(encode_learner(Idle()))
    thread = threading.Thread(target=learner.run)
    thread.start()
    assert is_inside.wait(60)
    ours.send(encode_learner(Busy()))
    waiting = next_status(ours, lambda each: each.steps > 0 and each.state == "waiting")
    assert waiting.steps == 2  # of the third one, the backward pass is left
    assert ops[0] <= at_request[0] + 1  # the operation before which it waits
    ours.send(encode_learner(Idle()))
    assert next_status(ours, lambda each: each.steps >= 4)
    assert ops[0] > at_request[0] + 100
    ours.send(encode_learner(StopLearning()))
    thread.join(60)
    assert not thread.is_alive()
    context.destroy(linger=0)


def test_a_learner_ends_inside_of_a_step(tmp_path, monkeypatch):
    monkeypatch.setattr(learn_process, "_QUIET_S", 0.0)
    monkeypatch.setattr(learn_process, "_LOOK_S", 0.0)
    context = zmq.Context()
    ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    ours.bind("inproc://learner")
    theirs.connect("inproc://learner")
    learner, take_step = LearnerProcess(config_of(tmp_path), theirs), Trainer._weighted_sum

    def server_ends(trainer, losses, batch):
        ours.send(encode_learner(StopLearning()))
        assert theirs.poll(5000)
        return take_step(trainer, losses, batch)

    monkeypatch.setattr(Trainer, "_weighted_sum", server_ends)
    for number in range(16):
        text = tuple((3 + 5 * number + 7 * step) % 60 for step in range(40))
        ours.send(encode_learner(LearnText(text, 6, 0.0)))
    ours.send(encode_learner(Idle()))
    assert learner.run() == 0
    assert learner._learner.num_steps == 0
    context.destroy(linger=0)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_operations_are_watched_where_they_take_time(kind):
    called: list[int] = []
    with replace(DEVICE, device=torch.device(kind)).pausing(lambda: called.append(1)):
        torch.ones(2)
    assert bool(called) == (kind == "cpu")
