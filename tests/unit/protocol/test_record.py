"""A stored job: everything Node reads, decoded when it is read."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from toril.errors import MalformedValue, PermanentError
from toril.protocol.backoff import Backoff
from toril.protocol.options import ParentRef
from toril.protocol.record import JobRecord

FLAT = [
    *(b"name", b"send"),
    *(b"data", '{"to":"é"}'.encode()),
    *(b"opts", b'{"attempts":5,"backoff":{"type":"fixed","delay":2000},"fpof":true}'),
    *(b"timestamp", b"1735732800000"),
    *(b"delay", b"1500"),
    *(b"priority", b"3"),
    *(b"processedOn", b"1735732801000"),
    *(b"finishedOn", b"1735732802000"),
    *(b"ats", b"2"),
    *(b"atm", b"1"),
    *(b"stc", b"1"),
    *(b"progress", b'{"percent":50}'),
    *(b"returnvalue", b'{"ok":true}'),
    *(b"failedReason", b"boom"),
    *(b"stacktrace", b'["one","two"]'),
    *(b"parent", b'{"id":"p","queueKey":"bull:parents","fpof":true}'),
    *(b"parentKey", b"bull:parents:p"),
    *(b"rjk", b"nightly"),
    *(b"nrjid", b"repeat:nightly:2"),
    *(b"deid", b"x"),
    *(b"pb", b"host-1-abc"),
    *(b"defa", b"stalled too often"),
]


def record(**fields: Any) -> JobRecord:
    return JobRecord.from_mapping("7", fields)


def test_every_field_of_the_hash_has_its_attribute() -> None:
    job = JobRecord.from_flat("7", FLAT)
    assert (job.id, job.name, job.data) == ("7", "send", {"to": "é"})
    assert job.opts == {"attempts": 5, "backoff": {"type": "fixed", "delay": 2000}, "fpof": True}
    assert job.options.backoff == Backoff.fixed(2)
    assert job.options.fail_parent_on_failure is True
    assert job.max_attempts == 5
    assert (job.priority, job.delay, job.delay_ms) == (3, 1.5, 1500)
    assert job.timestamp == datetime(2025, 1, 1, 12, tzinfo=UTC)
    assert job.timestamp_ms == 1735732800000
    assert job.processed_on == datetime(2025, 1, 1, 12, 0, 1, tzinfo=UTC)
    assert job.finished_on == datetime(2025, 1, 1, 12, 0, 2, tzinfo=UTC)
    assert (job.attempts_started, job.attempts_made, job.stalled_count) == (2, 1, 1)
    assert job.progress == {"percent": 50}
    assert job.returnvalue == {"ok": True}
    assert job.failed_reason == "boom"
    assert job.stacktrace == ["one", "two"]
    assert job.parent == ParentRef("p", "bull:parents")
    assert job.parent_key == "bull:parents:p"
    assert job.repeat_job_key == "nightly"
    assert job.next_repeat_job_id == "repeat:nightly:2"
    assert job.deduplication_id == "x"
    assert job.processed_by == "host-1-abc"
    assert job.deferred_failure == "stalled too often"


def test_missing_fields_have_nodes_defaults() -> None:
    job = record(name="send")
    assert job.data == {}
    assert job.raw_data == b"{}"
    assert job.opts == {}
    assert job.max_attempts == 1
    assert (job.attempts_made, job.attempts_started, job.stalled_count, job.progress) == (0, 0, 0, 0)
    assert (job.priority, job.delay) == (0, 0)
    assert job.processed_on is None
    assert job.finished_on is None
    assert job.returnvalue is None
    assert job.failed_reason is None
    assert job.stacktrace == []
    assert job.parent is None
    assert job.processed_by is None


def test_a_job_that_does_not_exist_is_false() -> None:
    assert not JobRecord.from_flat("7", [])
    assert JobRecord.from_flat("7", FLAT)
    assert repr(JobRecord.from_flat("7", FLAT)) == "JobRecord(id='7', name='send')"


def test_the_legacy_attempt_counter_wins_as_in_node() -> None:
    assert record(attemptsMade="0", atm="3").attempts_made == 0
    assert record(attemptsMade="", atm="3").attempts_made == 3
    assert record(atm="3").attempts_made == 3


def test_numbers_that_lua_wrote_are_read() -> None:
    assert record(timestamp="1.7357328e+12").timestamp_ms == 1735732800000


@pytest.mark.parametrize(
    ("field", "value", "attribute"),
    [
        ("data", "{", "data"),
        ("data", b"\xff\xfe", "data"),
        ("opts", "[]", "opts"),
        ("opts", "nope", "opts"),
        ("opts", "nope", "options"),
        ("opts", "nope", "max_attempts"),
        ("returnvalue", "{", "returnvalue"),
        ("progress", "half", "progress"),
        ("timestamp", "yesterday", "timestamp"),
        ("timestamp", "inf", "timestamp_ms"),
        ("processedOn", "x", "processed_on"),
        ("parent", '{"id":"p"}', "parent"),
        ("parent", "[1]", "parent"),
    ],
)
def test_a_malformed_field_is_a_permanent_error_when_it_is_read(
    field: str, value: Any, attribute: str
) -> None:
    job = record(**{"name": "send", field: value})
    assert job.name == "send"
    with pytest.raises(MalformedValue) as refused:
        getattr(job, attribute)
    assert refused.value.job_id == "7"
    assert refused.value.field == field
    assert isinstance(refused.value, PermanentError)


def test_a_malformed_stack_trace_is_shown_as_it_is() -> None:
    assert record(stacktrace="at line 3").stacktrace == ["at line 3"]
    assert record(stacktrace='"one"').stacktrace == ["one"]


def test_values_are_decoded_once() -> None:
    job = JobRecord.from_flat("7", FLAT)
    assert job.data is job.data
    assert job.opts is job.opts
    assert job.fields[b"name"] == b"send"


def test_a_record_travels_to_other_processes() -> None:
    job = JobRecord.from_flat("7", FLAT)
    assert pickle.loads(pickle.dumps(job)).data == {"to": "é"}


def test_a_listing_names_what_does_not_parse_and_shows_the_rest() -> None:
    shown = record(name="send", data="{", progress="x", timestamp="5").as_dict()
    assert shown["malformed"] == ["data", "progress"]
    assert shown["name"] == "send"
    assert "data" not in shown
    whole = JobRecord.from_flat("7", FLAT).as_dict()
    assert "malformed" not in whole
    assert whole["processedOn"] == 1735732801000
    assert whole["finishedOn"] == 1735732802000


def test_text_that_is_no_unicode_is_replaced() -> None:
    assert record(failedReason=b"\xffbad").failed_reason == "\ufffdbad"
