"""Text of other programs costs time in proportion to its length: no expression searches it again and again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hostile_corpus import LONG_TEXTS, MEGABYTE
from toril.backends.dead_letters import parse_filter
from toril.cli._output import shorten
from toril.errors import TorilError, redact
from toril.observe.overview import unique_labels
from toril.protocol import printable
from toril.protocol.codec import from_json
from toril.protocol.cron import Cron
from toril.protocol.envelope import Envelope
from toril.protocol.event import Event
from toril.protocol.keys import check_job_id, check_text
from toril.protocol.option_names import _snake
from toril.protocol.record import JobRecord
from toril.protocol.stack_trace import storable
from toril.spark.pipeline.silver.stack_traces import message_of
from toril.spark.pipeline.supervisor.spark_errors import cause_of
from toril.spark.worker.data_types import data_type_of
from toril.transport.discovery import QueueSearch, escape_pattern
from toril.worker._log_lines import fields_text

BULLMQ = QueueSearch(kind="bullmq", prefix="bull")
LIST = QueueSearch(kind="list", prefix="msaas", env="prod")

# Everything that is called with names, ids, data, errors, logs or keys that another program wrote.
READERS: dict[str, Callable[[str], object]] = {
    "redact": redact,
    "one line": printable.one_line,
    "lines": printable.lines,
    "JSON text": lambda text: printable.json_text(json.dumps(text, ensure_ascii=False)),
    "a field of a log line": lambda text: fields_text({"job_name": text, "job_ids": [text]}),
    "a cell": shorten,
    "a label": lambda text: unique_labels([text, text]),
    "a stored reason": storable,
    "the message of a stack trace": message_of,
    "the message of Node's stack trace": lambda text: message_of(f"Error: a{text}\n    at b"),
    "the message of Python's stack trace": lambda text: message_of(
        f"Traceback (most recent call last):\n{text}"
    ),
    "the cause of an error of Spark": cause_of,
    "a JSON value": from_json,
    "a record": lambda text: JobRecord.from_mapping(
        "1", dict.fromkeys(("data", "opts", "timestamp"), text)
    ).as_dict(),
    "an envelope": Envelope.from_bytes,
    "an event": lambda text: Event.from_entry(
        "1-1", {"event": text, "jobId": text, "attemptsMade": text}
    ).as_dict(),
    "a name": lambda text: check_text("name", text),
    "an id": check_job_id,
    "a key of a BullMQ queue": lambda text: BULLMQ.queue_of(f"bull:{text}:meta"),
    "a key of a list queue": lambda text: LIST.queue_of(f"msaas:prod:queue:{text}"),
    "a pattern": escape_pattern,
    "a cron pattern": Cron.parse,
    "a filter of dead letters": parse_filter,
    "the name of an option": _snake,
    "the columns of a Spark handler": data_type_of,
}


def seconds_of(reader: Callable[[str], object], text: str) -> float:
    """The time of this thread alone, whatever else the machine does."""
    began = time.thread_time()
    with suppress(TorilError, ValueError, RecursionError):
        reader(text)
    return time.thread_time() - began


def is_held(reader: Callable[[str], object], text: str) -> bool:
    """Whether a reader needs a second, and more than eight times as long as for a quarter of the text.

    Coverage and a slow machine make each step longer, but four times the text never takes sixteen times as long.
    """
    seconds = seconds_of(reader, text)
    return seconds >= 1 and seconds > 8 * seconds_of(reader, text[: len(text) // 4])


@pytest.mark.parametrize("name", READERS)
def test_a_megabyte_holds_no_reader_for_a_second(name: str) -> None:
    assert [text for text in LONG_TEXTS if is_held(READERS[name], LONG_TEXTS[text])] == []


@settings(max_examples=15)
@given(
    piece=st.text(alphabet=":/?&=@ \n\t.\"\\'[](){}<>*-_%0aAzé\x1b\u2028", min_size=1, max_size=6),
    end=st.text(max_size=3),
)
@pytest.mark.parametrize("name", READERS)
def test_no_repeated_piece_of_text_holds_a_reader(name: str, piece: str, end: str) -> None:
    text = piece * (MEGABYTE // 4 // len(piece)) + end
    assert not is_held(READERS[name], text)
