"""How an engine keeps its matcher processes apart. Their side of the sockets is a thread here."""

import fcntl
import os
import resource
import socket
import threading

import pytest

from outrider.structured import shared_masks
from outrider.structured.loaded_grammar import LoadedGrammar
from outrider.structured.match_rows import LOST, MaskTask, RowGrammar, StepMatch
from outrider.structured.matcher_messages import GrammarLoaded, receive_message, send_message
from outrider.structured.shared_masks import create_masks
from outrider.structured.wait_for_input import wait_for_input
from outrider.wire.row_sampling import Ban

ANOTHER_ROW = 1 << 40
HIGH = 1500  # a file descriptor that select.select refuses


@pytest.fixture
def masks():
    made = create_masks(rows=4, words=3)
    yield made
    os.close(made.fd)


def load(masks, answer=lambda slot: {}):
    """A grammar whose peer answers each step; it ends if `answer` raises EOFError."""

    def serve(channel):
        with channel:
            try:
                slot = receive_message(channel).slot
                send_message(channel, GrammarLoaded(pid=0, load_s=0.0))
                while receive_message(channel):
                    send_message(channel, answer(slot))
            except EOFError:
                return

    def fork():
        ours, theirs = socket.socketpair()
        threading.Thread(target=serve, args=[theirs], daemon=True).start()
        return ours

    return LoadedGrammar("", fork, masks)


def end(loaded):
    """Drop the grammar as an eviction does; there is no process that could be killed."""
    loaded._process._close()
    loaded._process = None


def slot_of(loaded):
    return loaded._process.slot


def test_no_two_live_processes_share_a_slot(monkeypatch):
    monkeypatch.setattr(shared_masks, "NUM_SLOTS", 2)
    few = create_masks(rows=4, words=3)
    first = load(few)
    for _ in range(5):
        other = load(few)
        assert slot_of(other) != slot_of(first)
        end(other)
    other = load(few)
    with pytest.raises(OSError, match="2 matcher processes run already"):
        load(few)
    end(other)
    end(load(few))
    end(first)
    os.close(few.fd)


def test_a_grammar_that_is_dropped_gives_its_slot_back(monkeypatch):
    monkeypatch.setattr(shared_masks, "NUM_SLOTS", 1)
    few = create_masks(rows=4, words=3)
    assert [slot_of(load(few)) for _ in range(3)] == [0, 0, 0]
    os.close(few.fd)


def test_ends_that_blame_a_row_of_another_step_are_counted(masks):
    """Each end names a row that is not in the group: matching again would never stop."""
    ends = []

    def answer(slot):
        ends.append(slot)
        if len(ends) > 5:
            return {}  # without a limit the step gets here
        masks.running[slot] = ANOTHER_ROW
        raise EOFError

    loaded = load(masks, answer)
    grammar = RowGrammar(loaded, ends=(2,), ban=Ban(tokens=(), before=0), output=())
    task = MaskTask(grammar=grammar, tokens=[0], parents=[-1], positions=[0], first=0)
    StepMatch([task]).wait()
    assert grammar.failure == LOST
    assert len(ends) == 2


@pytest.fixture
def high_socket():
    """A pair of sockets; the first has a descriptor past 1024."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2 * HIGH), limits[1]))
    low, theirs = socket.socketpair()
    with low, theirs, socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD, HIGH)) as ours:
        yield ours, theirs
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_with_a_high_descriptor_is_waited_for(high_socket):
    ours, theirs = high_socket
    assert ours.fileno() >= HIGH
    assert not wait_for_input(ours, timeout_s=0)
    theirs.close()
    assert wait_for_input(ours, timeout_s=5)
