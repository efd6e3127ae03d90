"""A chat at the terminal, with a paper runner in place of a model."""

import random
import signal

import pytest
from support.paper import PaperRunner, facts

from outrider.cli.chat_session import ChatSession
from outrider.engine.engine import Engine
from outrider.frontend.frontend import Frontend
from outrider.frontend.sampling_params import SamplingParams

PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)


class ImpatientRunner(PaperRunner):
    """The user presses Ctrl-C while this step runs."""

    interrupted_step = 0

    def submit(self, batch):
        result = super().submit(batch)
        if self.num_steps == self.interrupted_step:
            signal.raise_signal(signal.SIGINT)
        return result


@pytest.fixture
def runner():
    return ImpatientRunner(facts(max_context=256, num_pages=256), random.Random(1))


@pytest.fixture
def frontend(runner, tokenizer):
    return Frontend(Engine(runner, runner.facts), tokenizer)


@pytest.fixture
def session(frontend):
    return ChatSession(frontend, PARAMS, system="")


def test_an_interrupt_stops_the_answer_and_the_chat_goes_on(session, runner, frontend, capsys):
    session.handle("hello")
    whole = capsys.readouterr().out
    session.handle("/reset")
    runner.interrupted_step = runner.num_steps + 8
    session.handle("hello")
    stopped = capsys.readouterr()
    assert stopped.err.endswith("[stopped]\n")
    assert 0 < len(stopped.out) < len(whole)
    assert whole.startswith(stopped.out)
    assert frontend.is_idle
    assert not session.is_over
    session.handle("again")
    assert capsys.readouterr().out


def test_a_full_context_forgets_the_oldest_messages_and_says_so(session, capsys):
    for _ in range(6):
        session.handle("tell me more of the road ahead")
    assert "forgot the 2 oldest messages" in capsys.readouterr().err


def test_an_unknown_command_shows_those_that_exist(session, capsys):
    session.handle("/frobnicate")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "/reset" in shown.err
