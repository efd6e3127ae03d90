"""Barriers, copies and warps of one block of threads, so that a Gluon kernel's own loops run here.

Warps and copies go on in a random order. It says so when none can, and a tile that is copied to
has no content until the copy is complete.
"""

import random
import threading
from types import FunctionType


class Barrier:
    """An mbarrier: a phase ends when all have arrived and all expected bytes have."""

    def __init__(self, count):
        self.count = self.pending = count
        self.num_bytes = self.num_phases = 0

    def arrive(self):
        self.pending -= 1
        assert self.pending >= 0, "more arrivals than the barrier counts"
        self.advance()

    def advance(self):
        if self.pending == 0 == self.num_bytes:
            self.pending, self.num_phases = self.count, self.num_phases + 1

    def is_past(self, parity):
        return self.num_phases & 1 != parity


class Tile:
    """A piece of shared memory: what was copied to it last."""

    content = None

    def permute(self, order):
        return self


class Machine:
    def __init__(self, seed):
        self.random, self.copies, self.ready = random.Random(seed), [], {}
        self.turn, self.back, self.errors = {}, threading.Semaphore(0), []

    def run(self, programs):
        """All warps to their end; a program is a function without arguments."""
        for name, program in programs.items():
            self.turn[name], self.ready[name] = threading.Semaphore(0), lambda: True
            threading.Thread(target=self._run, args=(name, program), name=name, daemon=True).start()
        while self.ready or self.copies:
            able = [name for name, is_ready in self.ready.items() if is_ready()]
            assert able or self.copies, f"deadlock of {list(self.ready)}"
            if self.copies and (not able or self.random.random() < 0.5):
                self._complete(self.copies.pop(self.random.randrange(len(self.copies))))
                continue
            self.turn[self.random.choice(able)].release()
            self.back.acquire()
            if self.errors:
                raise self.errors[0]

    def _run(self, name, program):
        self.turn[name].acquire()
        try:
            program()
        except BaseException as error:
            self.errors.append(error)
        del self.ready[name]
        self.back.release()

    def pause(self, is_ready=lambda: True):
        """Let others go on, and go on when ready."""
        name = threading.current_thread().name
        self.ready[name] = is_ready
        self.back.release()
        self.turn[name].acquire()

    def copy(self, source, place, barrier, tile):
        tile.content = None
        self.copies.append((tuple(place), source.num_bytes, barrier, tile))
        self.pause()

    def _complete(self, copy):
        place, num_bytes, barrier, tile = copy
        tile.content = place
        barrier.num_bytes -= num_bytes
        barrier.advance()

    def wait(self, barrier, parity, pred=True):
        if pred:
            self.pause(lambda: barrier.is_past(parity))

    def expect(self, barrier, num_bytes):
        barrier.num_bytes += num_bytes
        barrier.arrive()
        self.pause()

    def arrive(self, barrier):
        barrier.arrive()
        self.pause()


def rebound(functions, names):
    """The Python functions of jitted ones, with these names as their globals."""
    names = dict(names)
    for function in functions:
        names[function.__name__] = FunctionType(function.fn.__code__, names)
    return names
