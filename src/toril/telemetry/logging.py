"""Recipes for the log: JSON lines, and a way into structlog.

    from toril.telemetry.logging import log_as_json
    log_as_json()                                             # everything of toril, one JSON object in a line

    import structlog
    logging.getLogger("toril").addHandler(StructlogHandler(structlog.get_logger()))

Guarantee: every field that toril gives (`worker_id`, `job_id`, `queue`, `event`, …) is a field of the line; passwords
in URLs are replaced, in stack traces too; a value that has no JSON form is written as text.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from toril.contract.errors import redact

__all__ = ["JsonFormatter", "StructlogHandler", "log_as_json", "log_as_text"]

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# What every record has; all else was given by whoever logged.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def given_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that came with `extra=`."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


class JsonFormatter(logging.Formatter):
    """One JSON object in a line: time, level, logger, message, and every field that was given."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **given_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: _shown(value) for name, value in line.items()}, ensure_ascii=False)


def _shown(value: Any) -> Any:
    """A value in JSON types, each text of it without passwords."""
    if isinstance(value, dict):
        return {str(name): _shown(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(one) for one in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return redact(str(value))


class RedactingFormatter(logging.Formatter):
    """Plain lines, with the passwords of URLs replaced and nothing in them that a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        text = redact(super().format(record))
        return _OBEYED.sub(lambda sign: f"\\x{ord(sign[0]):02x}", text)


class BoundLogger(Protocol):
    """What we need of structlog."""

    def log(self, level: int, event: str, **fields: Any) -> Any: ...


class StructlogHandler(logging.Handler):
    """Hands toril's lines to a structlog logger as an event with fields."""

    def __init__(self, logger: BoundLogger, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        fields = given_fields(record)
        event = str(fields.pop("event", None) or record.getMessage())
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        self._logger.log(record.levelno, event, **fields)


def log_as_json(level: int | str = logging.INFO, stream: TextIO | None = None) -> logging.Handler:
    """Sends everything of toril to `stream` (standard error) as JSON lines; the handler, to be removed again."""
    return _attach(JsonFormatter(), level, stream)


def log_as_text(level: int | str = logging.INFO, stream: TextIO | None = None) -> logging.Handler:
    """The same as plain lines."""
    return _attach(RedactingFormatter("%(asctime)s %(levelname)-7s %(message)s"), level, stream)


def _attach(formatter: logging.Formatter, level: int | str, stream: TextIO | None) -> logging.Handler:
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    logger = logging.getLogger("toril")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False  # or the root logger's handlers would write every line a second time
    return handler
