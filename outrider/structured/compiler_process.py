"""The process that compiles grammars. A grammar that crashes the compiler does not hurt the engine.

Standard input carries the vocabulary, then specs. Standard output carries one answer per spec.
"""

import contextlib
import os
import pickle
import signal
import sys
from typing import BinaryIO

from outrider.errors import RequestError
from outrider.structured.grammar_compiler import Compiler
from outrider.structured.process_bounds import bound_memory

MEMORY_BYTES = 1 << 30  # for compiling, besides what the process holds when it starts

# The owner gives up much earlier. This ends a compiler that is busy when its owner is killed.
MAX_COMPILE_S = 20

COMPILED, REFUSED = b"C", b"R"


def run_compiler() -> None:
    """Answer until standard input is closed, which happens when the owner ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # A library that prints must not mix its text with answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        compiler = Compiler(pickle.load(sys.stdin.buffer))
    except (EOFError, pickle.UnpicklingError):  # the owner ended while this process started
        return
    bound_memory(MEMORY_BYTES)
    write_answer(answers, COMPILED, "")  # ready
    while True:
        try:
            spec = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        signal.alarm(MAX_COMPILE_S)  # kills this process, even inside xgrammar
        try:
            status, text = COMPILED, compiler.compile(spec)
        except RequestError as error:
            status, text = REFUSED, str(error)
        signal.alarm(0)
        write_answer(answers, status, text)


def write_answer(stream: BinaryIO, status: bytes, text: str) -> None:
    """One byte of status, eight of length, the text."""
    body = text.encode()
    stream.write(status + len(body).to_bytes(8, "big") + body)
    stream.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the owner ended while a grammar was compiled
        run_compiler()
