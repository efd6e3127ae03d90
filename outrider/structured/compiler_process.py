"""The process that compiles grammars: whatever one of them does to it, the engine lives on.

Standard input brings the vocabulary, then specs; standard output takes one answer for each.
"""

import os
import pickle
import resource
import sys
from typing import BinaryIO

from outrider.errors import RequestError
from outrider.structured.grammar_compiler import Compiler

MEMORY_BYTES = 1 << 30  # for compiling, beyond what the process holds before

COMPILED, REFUSED = b"C", b"R"


def main() -> None:
    """Answer until standard input ends, which it does with the process that asked."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library that prints disturbs nobody
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
    main()
