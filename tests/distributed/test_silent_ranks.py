"""When rank 0 gives up a rank that says nothing."""

import os
import signal
import subprocess
import sys
from multiprocessing import Pipe

import pytest
from support.processes import wait_until

from outrider.config.process_state import is_stopped
from outrider.runtime.rank_processes import RankPeer

TIMEOUT_S = 15.0


class SleepingRank:
    """A process that computes nothing, in the place of a rank."""

    rank = 1

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.connection, self._other = Pipe()

    @property
    def is_stopped(self):
        return is_stopped(self.process.pid)

    def kill(self):
        self.process.kill()

    def close(self):
        self.process.wait()


@pytest.fixture(name="peer")
def peer_of_a_process():
    link = SleepingRank()
    peer = RankPeer(link)
    peer.is_loading = False
    yield peer
    link.kill()
    link.close()


def test_a_silent_rank_is_lost_after_its_time_and_a_stopped_one_soon(peer):
    for _ in range(5):
        peer.note_silence(0.5)
    assert peer.why_lost(TIMEOUT_S) == ""
    os.kill(peer.link.process.pid, signal.SIGSTOP)
    wait_until(lambda: peer.link.is_stopped)
    assert peer.why_lost(TIMEOUT_S) == "rank 1 is stopped, for 2 s"
    os.kill(peer.link.process.pid, signal.SIGCONT)
    wait_until(lambda: not peer.link.is_stopped)
    assert peer.why_lost(TIMEOUT_S) == ""
    for _ in range(26):
        peer.note_silence(0.5)
    assert peer.why_lost(TIMEOUT_S) == "rank 1 gave no sign of life for 15 s"


def test_the_time_for_which_all_were_paused_is_not_the_ranks_silence(peer):
    peer.note_silence(600.0)  # one look: the container was frozen meanwhile
    assert peer.why_lost(TIMEOUT_S) == ""
