"""The recipes for the log: fields stay fields, secrets stay secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from toril.telemetry.logging import JsonFormatter, StructlogHandler, log_as_json, log_as_text

FIELDS = {
    "worker_id": "host-1-abc",
    "job_id": "17",
    "queue": "emails",
    "event": "Job completed",
    "duration": 0.5,
}


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """toril's logger, put back as it was."""
    found = logging.getLogger("toril")
    before = (list(found.handlers), found.level, found.propagate)
    yield logging.getLogger("toril.worker")
    found.handlers[:], found.propagate = before[0], before[2]
    found.setLevel(before[1])


def test_a_line_is_one_json_object_with_every_field(logger: logging.Logger) -> None:
    stream = io.StringIO()
    log_as_json(stream=stream)
    logger.info("Job completed", extra=FIELDS)
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert {name: found[name] for name in FIELDS} == FIELDS
    assert (found["level"], found["logger"], found["message"]) == ("info", "toril.worker", "Job completed")
    assert found["time"].endswith("+00:00")


def test_passwords_are_replaced_wherever_they_stand(logger: logging.Logger) -> None:
    stream = io.StringIO()
    handler = log_as_json(stream=stream)
    url = "redis://user:canary-991@host:1/0"
    try:
        _fail(url)
    except ConnectionError:
        logger.exception("lost %s", url, extra={"error": url, "payload": {"deep": [url, "a@b.c"]}})
    handler.flush()
    found = json.loads(stream.getvalue())
    assert "canary-991" not in stream.getvalue()
    assert "Traceback" in found["exception"]
    assert found["payload"]["deep"][1] == "a@b.c"


def _fail(url: str) -> None:
    raise ConnectionError(f"no way to {url}")


def test_plain_lines_are_redacted_as_well(logger: logging.Logger) -> None:
    stream = io.StringIO()
    log_as_text(stream=stream)
    logger.warning("redis://:canary-992@host is away")
    assert "canary-992" not in stream.getvalue() and "is away" in stream.getvalue()


def test_plain_lines_hold_nothing_that_a_terminal_obeys(logger: logging.Logger) -> None:
    stream = io.StringIO()
    log_as_text(stream=stream)
    logger.warning("\x1b[2Jgone\x9b31m\ttab")
    assert "\x1b" not in stream.getvalue() and "\x9b" not in stream.getvalue()
    assert "\\x1b[2Jgone\\x9b31m\ttab" in stream.getvalue()


def test_a_value_without_a_json_form_is_written_as_text() -> None:
    record = logging.makeLogRecord({"msg": "x", "what": object, "numbers": (1, None, True)})
    found = json.loads(JsonFormatter().format(record))
    assert found["what"] == "<class 'object'>" and found["numbers"] == [1, None, True]


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Where structlog writes; it is put back as it was."""
    yield io.StringIO()
    structlog.reset_defaults()


def written(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_structlog_gets_an_event_with_fields(logger: logging.Logger, lines: io.StringIO) -> None:
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(lines),
    )
    logging.getLogger("toril").addHandler(StructlogHandler(structlog.get_logger()))
    logger.error("Job failed queue=emails", extra={**FIELDS, "event": "Job failed"})
    assert written(lines) == [{**FIELDS, "event": "Job failed", "level": "error"}]


def test_structlog_above_the_standard_library_does_not_go_round_in_circles(
    logger: logging.Logger, lines: io.StringIO
) -> None:
    handler = logging.StreamHandler(lines)
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    root = logging.getLogger("toril")
    root.setLevel(logging.INFO)
    root.addHandler(StructlogHandler(structlog.get_logger("toril.told")))
    logging.getLogger("toril.told").addHandler(handler)
    try:
        logger.info("Job completed", extra=FIELDS)
    finally:
        logging.getLogger("toril.told").removeHandler(handler)
    assert written(lines) == [FIELDS]


def test_structlog_shows_a_stack_trace_without_variables_and_passwords(
    logger: logging.Logger, lines: io.StringIO
) -> None:
    structlog.configure(
        processors=[structlog.processors.dict_tracebacks, structlog.dev.ConsoleRenderer(colors=False)],
        logger_factory=structlog.WriteLoggerFactory(lines),
    )
    logging.getLogger("toril").addHandler(StructlogHandler(structlog.get_logger()))
    secret_payload = {"card": "canary-881"}
    try:
        _fail("redis://user:canary-991@host:1/0")
    except ConnectionError:
        logger.exception("lost", extra={"event": "Worker error", "error": "redis://user:canary-992@host"})
    shown = lines.getvalue()
    assert "Worker error" in shown and "Traceback" in shown and "ConnectionError" in shown
    assert "canary" not in shown and secret_payload


def test_a_log_that_fails_does_not_fail_whoever_wrote_to_it(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def log(self, level: int, event: str, **fields: Any) -> None:
            raise OSError("disk full")

    monkeypatch.setattr(logging, "raiseExceptions", False)
    logging.getLogger("toril").addHandler(StructlogHandler(Broken()))
    logger.error("Job failed")
