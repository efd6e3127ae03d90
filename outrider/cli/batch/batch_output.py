"""The output file of a batch: one line per input line, in the order the requests finished."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from outrider.cli.batch.batch_input import InputLine, line_id
from outrider.errors import ConfigError

_OPENING = b'{"id": '  # how every line begins


class BatchOutput:
    """Owns the output file. A request whose line is incomplete counts as not done."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("ab")
            recovered = _recover(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        # Digest of each input line that is done, by its number.
        self.done = {number: record.digest for number, record in recovered.items()}
        self.num_failed = sum(record.is_failed for record in recovered.values())

    def __enter__(self) -> "BatchOutput":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._file.close()
        except OSError as failure:
            if error is None:  # otherwise that error is raised already
                raise _unwritable(self._path, failure) from failure

    def is_done(self, line: InputLine) -> bool:
        """Whether an earlier run answered a line; refuses a line that has changed since."""
        if line.number not in self.done:
            return False
        if self.done[line.number] != line.digest:
            raise ConfigError(
                f"input line {line.number + 1} changed since {self._path} was written; "
                "use another --output, or delete it to start again"
            )
        return True

    def append(self, line: InputLine, report: Mapping[str, Any]) -> None:
        """Write one answer and flush it, so that a killed process does not lose it."""
        record = {"id": line_id(line), "line": line.number, "digest": line.digest, **report}
        try:
            self._file.write(_encode(record) + b"\n")
            self._file.flush()
        except OSError as error:
            raise _unwritable(self._path, error) from error
        self.num_failed += report.get("error") is not None


@dataclass(frozen=True, slots=True)
class _Record:
    """The digest of an input line, and whether its answer is an error."""

    digest: str
    is_failed: bool


def _recover(path: Path) -> dict[int, _Record]:
    """Read the answers of an earlier run, and cut off an incomplete last line."""
    done: dict[int, _Record] = {}
    end = 0
    with path.open("rb") as file:
        for content in file:
            if not content.endswith(b"\n"):
                _check_opening(content, path)
                break
            number, record = _read_record(content, path)
            done[number] = record
            end += len(content)
    os.truncate(path, end)
    return done


def _check_opening(content: bytes, path: Path) -> None:
    """Refuse an incomplete last line that no batch has written."""
    if content[: len(_OPENING)] != _OPENING[: len(content)]:
        raise ConfigError(_foreign(path))


def _read_record(content: bytes, path: Path) -> tuple[int, _Record]:
    try:
        fields = json.loads(content)
        record = _Record(digest=str(fields["digest"]), is_failed=fields.get("error") is not None)
        return int(fields["line"]), record
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(_foreign(path)) from error


def _encode(record: Mapping[str, Any]) -> bytes:
    """A record as JSON. Half a surrogate pair has no UTF-8, so such a record is written in ASCII.

    The user's id can have one, and so can an error message that quotes the line.
    """
    try:
        return json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(record).encode()


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write {path}: {error.strerror}; check --output and the space left")


def _foreign(path: Path) -> str:
    return f"{path} holds something else than answers of a batch; use another --output"
