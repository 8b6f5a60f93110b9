"""Envelopes: byte-stable, validated, unknown fields kept."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toril.errors import (
    InvalidOption,
    MalformedValue,
    MissingUser,
    NotSerializable,
    PayloadMismatch,
    PermanentError,
)
from toril.protocol.envelope import DeadLetter, Envelope, Meta, dlq_reason, error_text, utc_text

CANONICAL = (
    b'{"job_id":"6b1c","task_type":"navigate_extract","attempts":0,"max_attempts":5,'
    b'"payload":{"url":"https://example.com","selector":".content"},'
    b'"meta":{"correlation_id":"c1","user_id":"u1","enqueue_ts":"2025-01-01T00:00:00Z","source":"api"}}'
)
NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)


def test_a_canonical_message_makes_the_round_trip_byte_by_byte() -> None:
    assert Envelope.from_bytes(CANONICAL).to_bytes() == CANONICAL


def test_a_message_of_another_writer_becomes_canonical() -> None:
    shuffled = json.dumps(dict(reversed(json.loads(CANONICAL).items())), indent=2)
    assert Envelope.from_bytes(shuffled).to_bytes() == CANONICAL


def test_unknown_fields_are_kept_at_both_levels() -> None:
    raw = CANONICAL.replace(b'"source":"api"', b'"source":"api","tenant":7')[:-1] + b',"trace":{"a":[1,2]}}'
    envelope = Envelope.from_bytes(raw)
    assert envelope.extra == {"trace": {"a": [1, 2]}}
    assert envelope.meta.extra == {"tenant": 7}
    assert envelope.to_bytes() == raw
    assert envelope.after_attempt().fresh().to_bytes() == raw


json_text = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | json_text
)


@given(st.dictionaries(json_text, scalars | st.lists(scalars, max_size=3), max_size=5), st.integers(0, 9))
def test_writing_is_stable_for_any_payload(payload: dict[str, Any], attempts: int) -> None:
    first = Envelope.new("t", payload, now=NOON)
    raw = first.to_bytes()
    again = Envelope.from_bytes(raw)
    assert again == first
    assert again.to_bytes() == raw
    for _ in range(attempts):
        again = again.after_attempt()
    assert again.attempts == attempts


def test_a_new_message_has_ids_a_time_and_all_its_attempts() -> None:
    envelope = Envelope.new("navigate", {"url": "x"}, now=NOON, user_id="u", source="api", max_attempts=3)
    assert envelope.job_id != envelope.meta.correlation_id
    assert envelope.meta.enqueue_ts == "2025-01-01T12:00:00Z"
    assert envelope.meta.enqueued_at == NOON
    assert (envelope.attempts, envelope.max_attempts) == (0, 3)
    assert Envelope.new("t").payload == {}
    assert Envelope.new("t").max_attempts == 5


def test_attempts_are_counted_until_none_is_left() -> None:
    envelope = Envelope.new("t", max_attempts=2)
    assert not envelope.is_exhausted
    assert not envelope.after_attempt().is_exhausted
    assert envelope.after_attempt().after_attempt().is_exhausted
    assert not envelope.after_attempt().after_attempt().fresh().is_exhausted


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"job_id": ""}, "envelope.job_id"),
        ({"job_id": 3}, "envelope.job_id"),
        ({"task_type": None}, "envelope.task_type"),
        ({"attempts": -1}, "envelope.attempts"),
        ({"attempts": True}, "envelope.attempts"),
        ({"attempts": 1.5}, "envelope.attempts"),
        ({"max_attempts": 0}, "envelope.max_attempts"),
        ({"payload": [1]}, "envelope.payload"),
        ({"meta": None}, "envelope.meta"),
        ({"meta": {}}, "envelope.meta.correlation_id"),
        ({"meta": {"correlation_id": "c", "source": "s"}}, "envelope.meta.enqueue_ts"),
        ({"meta": {"correlation_id": "c", "source": "s", "enqueue_ts": "noon"}}, "envelope.meta.enqueue_ts"),
        (
            {"meta": {"correlation_id": "c", "source": "s", "enqueue_ts": "2025-01-01"}},
            "envelope.meta.enqueue_ts",
        ),
        ({"meta": {"correlation_id": "c", "source": "s", "enqueue_ts": 5}}, "envelope.meta.enqueue_ts"),
        ({"meta": {"correlation_id": "c", "source": "", "enqueue_ts": "x"}}, "envelope.meta.source"),
    ],
)
def test_a_message_that_is_not_an_envelope_is_a_permanent_named_error(
    change: dict[str, Any], field: str
) -> None:
    raw = json.dumps({**json.loads(CANONICAL), **change})
    with pytest.raises(MalformedValue) as refused:
        Envelope.from_bytes(raw)
    assert refused.value.field == field


@pytest.mark.parametrize("name", ["job_id", "task_type", "attempts", "max_attempts", "payload", "meta"])
def test_every_field_is_required(name: str) -> None:
    fields = json.loads(CANONICAL)
    del fields[name]
    with pytest.raises(MalformedValue, match="is missing"):
        Envelope.from_bytes(json.dumps(fields))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"null", b"\xff"])
def test_bytes_that_are_no_object_are_refused(raw: bytes) -> None:
    with pytest.raises(MalformedValue):
        Envelope.from_bytes(raw)


def test_bytes_that_are_no_envelope_can_still_be_buried() -> None:
    envelope = Envelope.of_unreadable(b"\xffjunk", entry_id="5-0")
    assert envelope.payload == {"raw": "\ufffdjunk", "raw_base64": base64.b64encode(b"\xffjunk").decode()}
    assert Envelope.of_unreadable("grüezi".encode(), entry_id="5-0").payload == {"raw": "grüezi"}
    assert envelope.job_id == "unreadable-5-0"
    letter = DeadLetter.from_envelope(envelope, "validation_error", "not an envelope")
    assert DeadLetter.from_bytes(letter.to_bytes()).envelope == envelope


def test_a_payload_that_has_no_json_form_is_refused_when_it_is_written() -> None:
    with pytest.raises(NotSerializable):
        Envelope.new("t", {"x": object()}).to_bytes()
    with pytest.raises(InvalidOption, match="payload: is a list"):
        Envelope.new("t", [1])  # type: ignore[arg-type]


def test_a_message_without_a_user_says_null() -> None:
    envelope = Envelope.new("t", now=NOON)
    assert b'"user_id":null' in envelope.to_bytes()
    fields = json.loads(envelope.to_bytes())
    del fields["meta"]["user_id"]
    assert Envelope.from_bytes(json.dumps(fields)) == envelope


def test_times_are_written_in_utc_with_milliseconds_only_where_there_are_any() -> None:
    assert utc_text(NOON) == "2025-01-01T12:00:00Z"
    assert utc_text(NOON.replace(microsecond=5000)) == "2025-01-01T12:00:00.005Z"
    assert utc_text(NOON.astimezone(timezone(timedelta(hours=2)))) == "2025-01-01T12:00:00Z"
    with pytest.raises(InvalidOption, match="time zone"):
        utc_text(NOON.replace(tzinfo=None))


def test_the_time_of_another_writer_is_kept_as_it_was() -> None:
    raw = CANONICAL.replace(b"2025-01-01T00:00:00Z", b"2025-01-01T00:00:00.000+01:00")
    assert Envelope.from_bytes(raw).to_bytes() == raw


def test_a_dead_letter_is_the_envelope_with_when_why_and_what() -> None:
    envelope = Envelope.from_bytes(CANONICAL)
    letter = DeadLetter.from_envelope(envelope, "max_attempts_exceeded", "playwright_timeout", now=NOON)
    assert letter.to_bytes() == CANONICAL[:-1] + (
        b',"dlq_ts":"2025-01-01T12:00:00Z","dlq_reason":"max_attempts_exceeded","last_error":"playwright_timeout"}'
    )
    read = DeadLetter.from_bytes(letter.to_bytes(), entry_id="1-0")
    assert (read.envelope, read.died_at, read.entry_id) == (envelope, NOON, "1-0")
    assert (read.job_id, read.task_type) == ("6b1c", "navigate_extract")
    assert read.to_bytes() == letter.to_bytes()


@pytest.mark.parametrize("change", [{"dlq_reason": "tired"}, {"dlq_ts": "noon"}, {"attempts": -1}])
def test_a_dead_letter_that_is_none_is_a_permanent_error(change: dict[str, Any]) -> None:
    letter = DeadLetter.from_envelope(Envelope.from_bytes(CANONICAL), "permanent_error", "x").as_dict()
    with pytest.raises(MalformedValue):
        DeadLetter.from_bytes(json.dumps({**letter, **change}))
    with pytest.raises(MalformedValue, match=r"dead_letter\.dlq_ts is malformed: is missing"):
        DeadLetter.from_bytes(CANONICAL)


class Model(pydantic.BaseModel):
    n: int


def pydantic_error() -> Exception:
    try:
        Model.model_validate({})
    except pydantic.ValidationError as error:
        return error
    raise AssertionError


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PayloadMismatch("data", "no"), "validation_error"),
        (InvalidOption("delay", "no"), "validation_error"),
        (MalformedValue("envelope", "no"), "validation_error"),
        (msgspec.ValidationError("no"), "validation_error"),
        (pydantic_error(), "validation_error"),
        (caused(RuntimeError(), MissingUser("u1")), "missing_user"),
        (PermanentError("no"), "permanent_error"),
        (RuntimeError("no"), "permanent_error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_is_given_up_for_one_of_four_reasons(error: Exception, reason: str) -> None:
    assert dlq_reason(error, exhausted=False) == reason
    assert dlq_reason(error, exhausted=True) == "max_attempts_exceeded"


def test_a_ring_of_causes_does_not_hang() -> None:
    error = RuntimeError()
    error.__cause__ = error
    assert dlq_reason(error, exhausted=False) == "permanent_error"


class PageTimeout(TimeoutError):
    error_code = "playwright_timeout"


def test_the_last_error_is_a_code_or_type_and_message() -> None:
    assert error_text(PageTimeout("30 s")) == "playwright_timeout"
    assert error_text(ValueError("no such page")) == "ValueError: no such page"
    assert error_text(ValueError()) == "ValueError"
    assert len(error_text(ValueError("x" * 5000))) == 1000
    assert error_text(ValueError("\ud800")) == "ValueError: ?"


def test_meta_is_validated_when_it_is_made() -> None:
    with pytest.raises(InvalidOption, match=r"meta\.user_id"):
        Meta(correlation_id="c", enqueue_ts="2025-01-01T00:00:00Z", source="s", user_id="")


def test_an_error_that_cannot_be_printed_still_has_a_type() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Odd(Exception):
        error_code = "half a character \ud800 " + "x" * 5000

    assert error_text(Silent()) == "Silent"
    assert len(error_text(Odd())) == 1000
    assert error_text(Odd()).startswith("half a character ? ")


def test_what_others_wrote_can_be_written_again() -> None:
    text = Envelope.new("task", {"n": 1}).to_bytes().replace(b'{"n":1}', b'{"n":"\\ud800","big":%d}' % 10**30)
    envelope = Envelope.from_bytes(text)
    with pytest.raises(NotSerializable):
        envelope.to_bytes()
    assert Envelope.from_bytes(envelope.rewritten()) == envelope
    letter = DeadLetter.from_envelope(envelope, "permanent_error", "never")
    assert DeadLetter.from_bytes(letter.to_bytes()) == letter
    endless = Envelope.from_bytes(text.replace(b"%d" % 10**30, b"1e999"))
    with pytest.raises(NotSerializable):
        endless.rewritten()
