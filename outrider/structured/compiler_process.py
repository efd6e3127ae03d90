"""The process that compiles grammars. A grammar that crashes the compiler does not hurt the engine.

Standard input carries the vocabulary, then specs. Standard output carries one answer per spec.
"""

import os
import pickle
import resource
import sys
from typing import BinaryIO

from outrider.errors import RequestError
from outrider.structured.grammar_compiler import Compiler

MEMORY_BYTES = 1 << 30  # for compiling, besides what the process holds when it starts

COMPILED, REFUSED = b"C", b"R"


def run_compiler() -> None:
    """Answer until standard input is closed, which happens when the parent process ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # A library that prints must not mix its text with answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    compiler = Compiler(pickle.load(sys.stdin.buffer))
    _bound_memory()
    write_answer(answers, COMPILED, "")  # ready
    while True:
        try:
            spec = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            text = compiler.compile(spec)
        except RequestError as error:
            write_answer(answers, REFUSED, str(error))
        else:
            write_answer(answers, COMPILED, text)


def write_answer(stream: BinaryIO, status: bytes, text: str) -> None:
    """One byte of status, eight of length, the text."""
    body = text.encode()
    stream.write(status + len(body).to_bytes(8, "big") + body)
    stream.flush()


def _bound_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as statm:
        held = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES, held + MEMORY_BYTES))


if __name__ == "__main__":
    run_compiler()
