"""How tests train: on the CPU, in float32, by the written-down attention."""

import signal

import torch

from outrider.train.trainer import Trainer
from outrider.train.training_device import TrainingDevice

DEVICE = TrainingDevice(
    device=torch.device("cpu"), dtype=torch.float32, attention="dense", is_compiled=False
)


def interrupt_in_step(monkeypatch, number):
    """Send SIGINT while that step runs."""
    take_step = Trainer.step

    def step_and_interrupt(trainer, step, *rest, **named):
        if step == number:
            signal.raise_signal(signal.SIGINT)
        return take_step(trainer, step, *rest, **named)

    monkeypatch.setattr(Trainer, "step", step_and_interrupt)
