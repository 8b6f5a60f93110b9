"""One record of the log: text on one line, fields, and an error with its stack trace.

Guarantee: the text of a record is one line, whatever names and messages hold. Handlers that format errors themselves
(JSON, structlog, Sentry, pytest) get `exc_info`; for plain text the stack trace is folded into the line, and on a
terminal it follows in indented lines. Passwords in URLs are replaced in all of them, control characters escaped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

from toril.errors import redact
from toril.protocol.outcome import reason_of
from toril.protocol.printable import cut, one_line
from toril.protocol.stack_trace import user_traceback, was_cut
from toril.protocol.worker_options import Logger

# Characters of a folded stack trace; the job holds all of it.
LONGEST_TRACE: Final = 4000
# Characters of one field in the text of a record; another program may have chosen a name of any length.
LONGEST_FIELD: Final = 4000
_FRAME: Final = '  File "'

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class Trace(NamedTuple):
    """An error as a record holds it."""

    exc_info: ExcInfo
    folded: str  # the stack trace on one line
    lines: str  # the stack trace as Python prints it, for terminals


def fields_text(fields: dict[str, object]) -> str:
    """`key=value key=value …`; ids are separated by commas."""
    return one_line(" ".join(f"{key}={_shown(key, value)}" for key, value in fields.items()))


def _shown(key: str, value: Any) -> Any:
    if key == "job_ids":
        return cut(",".join(value), LONGEST_FIELD)
    return cut(value, LONGEST_FIELD) if isinstance(value, str) else value


def trace_of(error: BaseException | None, stack: str) -> Trace | None:
    """The error with its stack trace; None when the stack has no frame."""
    if error is None or _FRAME not in stack:
        return None
    shown = redact(stack)
    open_error = error if shown == stack and not was_cut(stack) else _redacted_error(error)
    folded = one_line(shown.strip())
    cut = folded if len(folded) <= LONGEST_TRACE else f"…{folded[-LONGEST_TRACE:]}"
    lines = "\n".join(f"    {one_line(line)}" for line in shown.strip().splitlines())
    return Trace((type(open_error), open_error, user_traceback(error)), cut, lines)


def _redacted_error(error: BaseException) -> BaseException:
    """An error with the same name and message, without passwords and causes, and with its message shortened."""
    kind = type(error)
    stand_in = type(kind.__name__, (Exception,), {"__module__": kind.__module__})
    shown: BaseException = stand_in(redact(reason_of(error)))
    return shown


def write_record(
    logger: Logger, level: int, text: str, fields: dict[str, object], trace: Trace | None = None
) -> None:
    """Writes a record. The fields of logger adapters are added: by default they would replace those of the record."""
    while isinstance(logger, logging.LoggerAdapter):
        text, given = logger.process(text, {"extra": fields})
        fields = {**(given.get("extra") or {}), **fields}
        logger = logger.logger
    if trace is None:
        logger.log(level, "%s", text, extra=fields)
        return
    folded = f"{text} traceback={trace.folded}"
    handlers = _handlers_of(logger, level)
    terminals = [one for one in handlers if _is_plain(one) and _is_terminal(one)]
    plain = [one for one in handlers if _is_plain(one) and one not in terminals]
    if len(plain) == len(handlers):
        logger.log(level, "%s", folded, extra=fields)
        return
    unfolded = f"{text}\n{trace.lines}"
    for some, shown in ((plain, folded), (terminals, unfolded)):
        record = logger.makeRecord(*_call_site(logger, level), shown, (), None, extra=fields)
        _dispatch(logger, some, record)
    record = logger.makeRecord(*_call_site(logger, level), text, (), trace.exc_info, extra=fields)
    record.exc_text = trace.folded  # for formatters that would write a stack trace of many lines
    _dispatch(logger, [one for one in handlers if one not in plain and one not in terminals], record)


def _call_site(logger: logging.Logger, level: int) -> tuple[str, int, str, int]:
    file, line, *_ = logger.findCaller()
    return logger.name, level, file, line


def _dispatch(logger: logging.Logger, handlers: Sequence[logging.Handler], record: logging.LogRecord) -> None:
    """What `Logger.handle` does, for some of its handlers."""
    passed: object = bool(handlers) and not logger.disabled and logger.filter(record)
    if passed:
        for handler in handlers:
            handler.handle(passed if isinstance(passed, logging.LogRecord) else record)  # from Python 3.12 on


def _handlers_of(logger: logging.Logger, level: int) -> list[logging.Handler]:
    """The handlers that get a record of this level."""
    handlers: list[logging.Handler] = []
    found: logging.Logger | None = logger
    while found is not None:
        handlers += [one for one in found.handlers if level >= one.level]
        found = found.parent if found.propagate else None
    return handlers


def _is_plain(handler: logging.Handler) -> bool:
    """A stream or file of the standard library, with a formatter that writes text: an error would be many lines."""
    formatter = handler.formatter
    writes_text = formatter is None or type(formatter).format is logging.Formatter.format
    plain = isinstance(handler, logging.StreamHandler) and type(handler).__module__.startswith("logging")
    return plain and writes_text


def _is_terminal(handler: logging.Handler) -> bool:
    """Whether a handler writes to a terminal, where people read stack traces."""
    isatty = getattr(getattr(handler, "stream", None), "isatty", None)
    try:
        return isatty is not None and bool(isatty())
    except ValueError:  # the stream is closed
        return False
