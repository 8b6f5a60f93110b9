"""Logging: JSON lines, plain lines, and a handler for structlog.

    from toril.telemetry.logging import log_as_json
    log_as_json()                                             # everything of toril, one JSON object in a line

    import structlog
    logging.getLogger("toril").addHandler(StructlogHandler(structlog.get_logger()))

Guarantee: every field that toril logs (`worker_id`, `job_id`, `queue`, `event`, …) is a field of the line; passwords
in URLs are replaced, in stack traces too; a value that has no JSON form is written as text.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from toril.errors import redact
from toril.protocol.printable import json_text, one_line

__all__ = ["JsonFormatter", "StructlogHandler", "log_as_json", "log_as_text"]

# Attributes of every record; all others come from `extra=`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def given_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the fields given by `extra=`."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


class JsonFormatter(logging.Formatter):
    """One JSON object in a line: time, level, logger, message, and every field of `extra=`."""

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
        text = json.dumps({name: _shown(value) for name, value in line.items()}, ensure_ascii=False)
        return json_text(text)


def _shown(value: object) -> object:
    """Returns a value in JSON types, each text without passwords."""
    if isinstance(value, dict):
        return {str(name): _shown(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(one) for one in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return redact(str(value))


class RedactingFormatter(logging.Formatter):
    """One plain line for each record, its stack trace included: passwords are replaced, control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return one_line(redact(super().format(record)))


class BoundLogger(Protocol):
    """The part of structlog's logger that is used."""

    def log(self, level: int, event: str, **fields: Any) -> Any: ...


class StructlogHandler(logging.Handler):
    """Passes toril's records to a structlog logger as an event with fields.

    A stack trace is passed as text, in the field `exception`: structlog would print the variables of every frame, and
    with them payloads and passwords.
    """

    def __init__(self, logger: BoundLogger, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._logger = logger
        self._busy = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._busy, "emitting", False):
            return  # structlog may write through a logger below "toril", which would lead here again
        self._busy.emitting = True
        try:
            self._pass_on(record)
        except Exception:  # noqa: BLE001  # a log that fails must not fail the job it is about
            self.handleError(record)
        finally:
            self._busy.emitting = False

    def _pass_on(self, record: logging.LogRecord) -> None:
        fields = {name: _shown(value) for name, value in given_fields(record).items()}
        event = str(fields.pop("event", None) or redact(record.getMessage()))
        if record.exc_info:
            fields["exception"] = redact(logging.Formatter().formatException(record.exc_info))
        self._logger.log(record.levelno, event, **fields)


def log_as_json(level: int | str = logging.INFO, stream: TextIO | None = None) -> logging.Handler:
    """Sends everything of toril to `stream` (standard error) as JSON lines; returns the handler."""
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
