"""The compiler process ends with its owner, however the owner ends."""

import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
from support.processes import LONG_S, wait_for_end, wait_until
from support.tiny_vocabulary import SPECS, TINY, VOCAB

from outrider.structured import compiler_thread
from outrider.structured.grammar_cache import GrammarCache
from outrider.wire.grammar_spec import GrammarSpec

pytest.importorskip("xgrammar")

BOMB = GrammarSpec(kind="regex", text="(a|aa)*" * 500)  # compiling it takes minutes

OWNER = """
import sys, time
from support.tiny_vocabulary import SPECS, TINY, VOCAB
from outrider.structured import compiler_thread
from outrider.structured.grammar_cache import GrammarCache
from outrider.wire.grammar_spec import GrammarSpec

compiler_thread.TIMEOUT_S = 60.0  # a busy machine takes more than the usual 5 seconds
cache = GrammarCache(lambda: TINY, vocab_size=VOCAB)
cache.check(SPECS["choice"])
print(cache._compiler._process._process.pid, flush=True)
for length in range({num_bombs}):
    cache.compile(GrammarSpec(kind="regex", text="(a|aa)*" * (500 + length)))
{end}
"""


def pid_of(cache):
    cache.check(SPECS["choice"])
    return cache._compiler._process._process.pid


@pytest.mark.slow
def test_a_compiler_process_ends_when_its_cache_is_dropped():
    cache = GrammarCache(lambda: TINY, vocab_size=VOCAB)
    pid, dropped = pid_of(cache), weakref.ref(cache)
    del cache
    gc.collect()
    assert dropped() is None
    wait_for_end(pid)


@pytest.mark.slow
def test_a_cache_that_is_dropped_cancels_the_grammars_that_wait(monkeypatch):
    monkeypatch.setattr(compiler_thread, "TIMEOUT_S", LONG_S)
    cache = GrammarCache(lambda: TINY, vocab_size=VOCAB)
    pid = pid_of(cache)
    busy, waiting = cache.compile(BOMB), cache.compile(SPECS["json"])
    wait_until(busy.running)
    del cache
    gc.collect()
    wait_for_end(pid)
    assert busy.exception(LONG_S) is not None
    wait_until(waiting.cancelled)


ENDS = {
    "returns": ("", None),
    "exits": ("sys.exit(3)", None),
    "fails": ("raise RuntimeError", None),
    "is interrupted": ("time.sleep(60)", signal.SIGINT),
    "is terminated": ("time.sleep(60)", signal.SIGTERM),
    "is killed": ("time.sleep(60)", signal.SIGKILL),
}


@pytest.mark.parametrize("num_bombs", [0, 3])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.slow
def test_a_compiler_process_ends_when_its_owner(end, num_bombs):
    line, number = ENDS[end]
    tests = str(Path(__file__).parents[1])
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(num_bombs=num_bombs, end=line)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
    )
    with owner:
        pid = int(owner.stdout.readline())
        if number is not None:
            time.sleep(0.3)
            owner.send_signal(number)
        owner.wait(LONG_S)
    wait_for_end(pid)
