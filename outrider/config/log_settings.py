"""How a process logs: from which level on, and as text or as JSON, one object per line."""

import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

_OURS = "outrider"  # other libraries log warnings only
_FACTS = "facts"  # attribute of a record: values that JSON has as keys of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The same for the server and its worker."""

    level: LogLevel = "info"
    format: LogFormat = "text"

    def install(self, process: str) -> None:
        """Log to standard error; `process` is the name that every line has."""
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(
            JsonFormatter(process) if self.format == "json" else TextFormatter(process)
        )
        logging.basicConfig(handlers=[handler], level=logging.WARNING)
        logging.getLogger(_OURS).setLevel(self.level.upper())


def facts(**values: object) -> dict[str, object]:
    """The `extra` of a log call: values that a JSON line has as keys."""
    return {_FACTS: values}


class TextFormatter(logging.Formatter):
    """`03:14:15 INFO outrider.server.access_log: ...`, with the worker's lines marked."""

    def __init__(self, process: str) -> None:
        mark = "" if process == "server" else f"{process}: "
        super().__init__(f"%(asctime)s {mark}%(levelname)s %(name)s: %(message)s", "%H:%M:%S")


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, process, message, and the facts of the record."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": record.getMessage(),
        }
        line |= record.__dict__.get(_FACTS, {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
