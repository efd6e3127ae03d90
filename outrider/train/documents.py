"""Documents to train on: token ids and the spans of the target's answers. One JSON line each."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError

Span = tuple[int, int]  # [start, stop) in the tokens of a document


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A conversation up to its last answer, with the id of the conversation."""

    id: str
    source: str
    tokens: tuple[int, ...]
    answers: tuple[Span, ...]
    temperature: float
    seed: int

    @property
    def num_answer_tokens(self) -> int:
        return sum(stop - start for start, stop in self.answers)


def line_of(document: Document) -> str:
    return json.dumps(asdict(document), separators=(",", ":")) + "\n"


def read_documents(path: Path) -> list[Document]:
    """The document of every complete line, sorted, so that the order of writing does not matter."""
    documents = [_parse(line, path) for line in _whole_lines(path)]
    return sorted(documents, key=lambda each: (each.id, each.temperature, len(each.tokens)))


def count_tokens(documents: Iterable[Document]) -> Counter[int]:
    """How often the target answered with each token."""
    counts: Counter[int] = Counter()
    for document in documents:
        for start, stop in document.answers:
            counts.update(document.tokens[start:stop])
    return counts


def _whole_lines(path: Path) -> Iterator[str]:
    """The lines that end in a line feed. An interrupted run may leave an incomplete last line."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error}); check --answers") from error
    whole, _, _ = raw.rpartition(b"\n")
    yield from (line for line in whole.decode().split("\n") if line)


def _parse(line: str, path: Path) -> Document:
    try:
        fields: dict[str, Any] = json.loads(line)
        return Document(
            id=fields["id"],
            source=fields["source"],
            tokens=tuple(fields["tokens"]),
            answers=tuple((start, stop) for start, stop in fields["answers"]),
            temperature=float(fields["temperature"]),
            seed=int(fields["seed"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} has a damaged line ({error!r}); delete the file") from error
