"""The output file of a batch: one line per input line, in the order the requests finished."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from outrider.api.batch.lines import InputLine, line_id
from outrider.errors import ConfigError

_OPENING = b'{"id": '  # how every line begins


class Journal:
    """Owns the output file. A line is there completely or the request counts as not done."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("ab")
            self.done = _recover(path)  # digest of each input line that is done, by its number
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}; check --output") from error

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def is_done(self, line: InputLine) -> bool:
        """Whether a line was answered by an earlier run, which must have seen the same line."""
        if line.number not in self.done:
            return False
        if self.done[line.number] != line.digest:
            raise ConfigError(
                f"input line {line.number + 1} changed since {self._path} was written; "
                "use another --output, or delete it to start again"
            )
        return True

    def append(self, line: InputLine, report: Mapping[str, Any]) -> None:
        """Write one answer; after this returns, a killed process no longer loses it."""
        record = {"id": line_id(line), "line": line.number, "digest": line.digest, **report}
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._file.flush()


def _recover(path: Path) -> dict[int, str]:
    """Read what an earlier run left and cut off a last line that it could not complete."""
    done: dict[int, str] = {}
    end = 0
    with path.open("rb") as file:
        for content in file:
            if not content.endswith(b"\n"):
                _check_opening(content, path)
                break
            number, digest = _read_record(content, path)
            done[number] = digest
            end += len(content)
    os.truncate(path, end)
    return done


def _check_opening(content: bytes, path: Path) -> None:
    """Half a line may only be cut off when it was going to be one of ours."""
    if content[: len(_OPENING)] != _OPENING[: len(content)]:
        raise ConfigError(_foreign(path))


def _read_record(content: bytes, path: Path) -> tuple[int, str]:
    try:
        record = json.loads(content)
        return int(record["line"]), str(record["digest"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(_foreign(path)) from error


def _foreign(path: Path) -> str:
    return f"{path} holds something else than answers of a batch; use another --output"
