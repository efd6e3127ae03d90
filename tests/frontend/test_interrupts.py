"""Ctrl-C waits for the end of a step."""

import signal
import subprocess
import sys
import threading

import pytest

from outrider.frontend.interrupts import held_interrupts


def hold(*actions):
    with held_interrupts():
        for action in actions:
            action()


def interrupt():
    signal.raise_signal(signal.SIGINT)


def fail():
    raise ValueError("broken")


@pytest.fixture
def ended():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_counts_only_after_the_body(ended):
    with pytest.raises(KeyboardInterrupt):
        hold(interrupt, lambda: ended.append(True))
    assert ended


def test_a_second_interrupt_does_not_wait(ended):
    with pytest.raises(KeyboardInterrupt):
        hold(interrupt, interrupt, lambda: ended.append(True))
    assert not ended


@pytest.mark.usefixtures("ended")
def test_an_error_of_the_body_is_not_hidden_by_an_interrupt():
    with pytest.raises(ValueError, match="broken"):
        hold(interrupt, fail)


def test_other_threads_are_left_alone(ended):
    thread = threading.Thread(target=hold, args=[lambda: ended.append(True)])
    thread.start()
    thread.join()
    assert ended


POKED = """
import os, signal, sys

class Poke:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.nn":
            os.kill(os.getpid(), signal.SIGINT)

from outrider.cli.main import run

sys.meta_path.insert(0, Poke())
code = run(["generate", "the", "--model", sys.argv[1]])
print(code, "torch" in sys.modules, "outrider.runtime.model_home" in sys.modules)
"""


@pytest.mark.slow
def test_an_interrupt_while_torch_is_loaded_ends_the_command_after_that(model_folder):
    """Inside torch's own libraries it was lost now and then, or aborted the process."""
    done = subprocess.run(
        [sys.executable, "-c", POKED, str(model_folder)], capture_output=True, text=True
    )
    assert done.stdout == "130 True False\n"  # torch is whole, and nothing was built with it
    assert done.stderr == "interrupted\n"
