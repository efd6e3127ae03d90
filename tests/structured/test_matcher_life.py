"""Matcher processes end with their owner, even in the middle of a grammar, and do not harm it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import LONG_S, wait_for_end

pytest.importorskip("xgrammar")

OWNER = """
import sys, time
from support.tiny_vocabulary import HIDDEN, RUNS
from outrider.structured import compiler_thread
from outrider.structured.grammar_cache import GrammarCache
from outrider.structured.matcher_messages import RowTask
from outrider.structured.matcher_pool import MatcherPool

compiler_thread.TIMEOUT_S = 60.0  # a busy machine takes more than the usual 5 seconds
cache = GrammarCache(lambda: RUNS, vocab_size=len(RUNS.pieces))
pool = MatcherPool(cache, mask_rows=4, mask_words=3)
loaded = pool.loaded(HIDDEN)
text = [RUNS.pieces.index(piece) for piece in (b"abc", b"12", b"x", b"m" * 64)]
task = RowTask(row=0, ends=(2,), emitted=text, tokens=[0], parents=[-1], first=0)
loaded.prepare()
loaded.post([task] if {is_busy} else [], max_s=3.0)
print(loaded.pid, cache.fork_server._process._process.pid, flush=True)
time.sleep(0.2)
{end}
"""

ENDS = {
    "returns": ("", 0),
    "exits": ("sys.exit(3)", 3),
    "fails": ("raise RuntimeError", 1),
    "is interrupted": ("time.sleep(60)", -signal.SIGINT),
    "is terminated": ("time.sleep(60)", -signal.SIGTERM),
    "is killed": ("time.sleep(60)", -signal.SIGKILL),
}


@pytest.mark.slow
@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_matcher_process_ends_when_its_owner(end, is_busy):
    line, code = ENDS[end]
    tests = str(Path(__file__).parents[1])
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(is_busy=is_busy, end=line)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
    )
    with owner:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 2
        if code < 0:
            owner.send_signal(-code)
        assert owner.wait(LONG_S) == code  # an exit is not an abort
    for pid in pids:
        wait_for_end(pid)
