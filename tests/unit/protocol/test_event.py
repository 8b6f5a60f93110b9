"""Events: every entry is kept, the time is the server's, and retries are derived."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from toril.errors import MalformedValue
from toril.protocol.event import KNOWN_EVENTS, Event, RetryDeriver, entry_time_ms

NOON_ID = "1735732800000-3"


def event(kind: str, job_id: str = "7", **fields: str) -> Event:
    return Event(NOON_ID, kind, job_id, fields)


def test_an_entry_becomes_an_event_with_the_servers_time() -> None:
    entry = {b"event": b"completed", b"jobId": b"7", b"returnvalue": b'{"ok":true}', b"prev": b"active"}
    got = Event.from_entry(NOON_ID.encode(), entry)
    assert (got.id, got.type, got.job_id, got.prev) == (NOON_ID, "completed", "7", "active")
    assert got.time == datetime(2025, 1, 1, 12, tzinfo=UTC)
    assert got.returnvalue == {"ok": True}
    assert got.is_known
    flat = [part for pair in entry.items() for part in pair]
    assert Event.from_entry(NOON_ID, flat) == got


def test_every_event_of_bullmq_is_known() -> None:
    assert len(KNOWN_EVENTS) == 18
    assert all(event(kind).is_known for kind in KNOWN_EVENTS)


def test_an_event_of_an_unknown_kind_is_kept_with_its_fields() -> None:
    got = Event.from_entry(NOON_ID, {"event": "teleported", "to": "mars"})
    assert (got.type, got.job_id, got.fields) == ("teleported", None, {"to": "mars"})
    assert not got.is_known


def test_an_entry_without_a_kind_is_kept_too() -> None:
    assert Event.from_entry(NOON_ID, {"x": b"\xff"}).fields == {"x": "\ufffd"}


def test_fields_are_decoded_by_what_they_mean() -> None:
    assert event("added", name="send").name == "send"
    assert event("progress", data='{"percent":5}').progress == {"percent": 5}
    assert event("failed", failedReason="boom").failed_reason == "boom"
    assert event("delayed", delay="1735732800000").delayed_until == datetime(2025, 1, 1, 12, tzinfo=UTC)
    assert event("retries-exhausted", attemptsMade="3").attempts_made == 3
    assert event("cleaned", count="12").count == 12
    assert event("debounced", debounceId="x").deduplication_id == "x"
    duplicate = event("deduplicated", deduplicationId="x", deduplicatedJobId="8")
    assert (duplicate.deduplication_id, duplicate.deduplicated_job_id) == ("x", "8")


def test_what_an_event_does_not_say_is_none() -> None:
    bare = event("waiting")
    said = (bare.prev, bare.name, bare.progress, bare.returnvalue, bare.failed_reason, bare.delayed_until)
    assert (*said, bare.attempts_made, bare.count, bare.deduplication_id) == (None,) * 9


def test_malformed_fields_are_named() -> None:
    with pytest.raises(MalformedValue, match="returnvalue"):
        _ = event("completed", returnvalue="{").returnvalue
    with pytest.raises(MalformedValue, match="delay"):
        _ = event("delayed", delay="soon").delayed_until
    with pytest.raises(MalformedValue, match="stream entry"):
        entry_time_ms("now")


def test_an_active_job_that_is_delayed_is_retried() -> None:
    got = list(RetryDeriver().feed([event("active"), event("delayed", delay="1735732800000")]))
    assert [each.type for each in got] == ["active", "delayed", "retry"]
    assert got[2].derived
    assert got[2].is_known
    assert got[2].prev == "active"
    assert got[2].delayed_until == got[1].delayed_until


def test_a_job_that_is_added_with_a_delay_is_not_retried() -> None:
    got = RetryDeriver().feed([event("added"), event("delayed", delay="5")])
    assert [each.type for each in got] == ["added", "delayed"]


def test_an_active_job_that_goes_back_is_retried_when_the_next_event_says_nothing_else() -> None:
    deriver = RetryDeriver()
    got = list(deriver.feed([event("active"), event("waiting", prev="active"), event("active", "8")]))
    assert [each.type for each in got] == ["active", "waiting", "retry", "active"]
    assert got[2].job_id == "7"


def test_a_stalled_job_is_not_retried_even_across_batches() -> None:
    deriver = RetryDeriver()
    got = list(deriver.feed([event("active"), event("waiting", prev="active")]))
    got += deriver.feed([event("stalled"), event("drained")])
    got += deriver.flush()
    assert [each.type for each in got] == ["active", "waiting", "stalled", "drained"]


def test_what_is_held_back_is_given_at_the_end() -> None:
    deriver = RetryDeriver()
    assert [each.type for each in deriver.feed([event("waiting", prev="active")])] == ["waiting"]
    assert [each.type for each in deriver.flush()] == ["retry"]
    assert list(deriver.flush()) == []


@pytest.mark.parametrize("end", ["completed", "failed", "removed", "waiting-children"])
def test_a_job_that_ended_and_is_delayed_again_is_not_retried(end: str) -> None:
    got = RetryDeriver().feed([event("active"), event(end), event("delayed", delay="5")])
    assert "retry" not in [each.type for each in got]


def test_events_without_a_job_pass_through() -> None:
    paused = Event(NOON_ID, "paused", None, {})
    assert list(RetryDeriver().feed([paused])) == [paused]


def test_the_memory_of_a_deriver_is_bounded() -> None:
    deriver = RetryDeriver(limit=2)
    started = [event("active", str(number)) for number in range(3)]
    later = [event("delayed", "0", delay="5"), event("delayed", "2", delay="5")]
    got = list(deriver.feed([*started, *later]))
    assert [each.job_id for each in got if each.type == "retry"] == ["2"]
