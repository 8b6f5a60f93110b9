"""The recipes for the log: fields stay fields, secrets stay secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

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


class Recorder:
    """Takes what structlog's logger takes."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, dict[str, Any]]] = []

    def log(self, level: int, event: str, **fields: Any) -> None:
        self.calls.append((level, event, fields))


def test_structlog_gets_an_event_with_fields(logger: logging.Logger) -> None:
    recorder = Recorder()
    logging.getLogger("toril").addHandler(StructlogHandler(recorder))
    logger.error("Job failed queue=emails", extra={**FIELDS, "event": "Job failed"})
    ((level, event, fields),) = recorder.calls
    assert (level, event) == (logging.ERROR, "Job failed")
    assert fields["job_id"] == "17" and "event" not in fields
