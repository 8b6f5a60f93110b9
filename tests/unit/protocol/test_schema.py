"""JSON schemas: those we ship describe what we write, and the small checker checks what it claims to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from toril.errors import InvalidOption, PayloadMismatch
from toril.protocol.envelope import DeadLetter, Envelope
from toril.protocol.event import KNOWN_EVENTS, Event
from toril.protocol.options import Deduplication, JobOptions, KeepJobs, ParentRef
from toril.protocol.record import JobRecord
from toril.protocol.schema import SHIPPED, check_against, refuse_unknown_keywords, shipped_schema


def misfit(schema: Any, value: Any) -> str:
    """Returns why a value does not fit a schema, or an empty text."""
    try:
        check_against(schema, value)
    except PayloadMismatch as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_schema_uses_only_keywords_that_are_checked(name: str) -> None:
    schema = shipped_schema(name)
    refuse_unknown_keywords(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_a_schema_that_is_not_shipped_is_refused() -> None:
    with pytest.raises(InvalidOption, match="choose one of job, event, envelope, dead_letter"):
        shipped_schema("../errors")


def test_a_stored_job_fits_the_job_schema() -> None:
    options = JobOptions(
        delay=1.5,
        priority=3,
        job_id="a",
        remove_on_complete=KeepJobs(age=60),
        deduplication=Deduplication.throttle("x", 5),
        parent=ParentRef("p", "bull:q"),
        fail_parent_on_failure=True,
        timestamp=datetime.now(UTC),
    )
    fields: dict[str, Any] = {
        "name": "send",
        "data": '{"to":"x"}',
        "opts": _json(options.to_wire()),
        "timestamp": "1700000000000",
        "processedOn": "1700000000001",
        "atm": "1",
        "stacktrace": '["a"]',
        "failedReason": "boom",
    }
    record = JobRecord.from_mapping("a", fields)
    assert misfit(shipped_schema("job"), record.as_dict()) == ""


def _json(value: Any) -> str:
    from toril.protocol.codec import to_json

    return to_json(value).decode()


@pytest.mark.parametrize("kind", [*KNOWN_EVENTS, "a-new-one"])
def test_every_event_fits_the_event_schema(kind: str) -> None:
    event = Event.from_entry(
        b"1700000000000-0", {b"event": kind.encode(), b"jobId": b"7", b"prev": b"active"}
    )
    assert misfit(shipped_schema("event"), event.as_dict()) == ""


def test_an_envelope_and_its_dead_letter_fit_their_schemas() -> None:
    envelope = Envelope.new("navigate", {"url": "x"}, user_id="u")
    assert misfit(shipped_schema("envelope"), envelope.as_dict()) == ""
    letter = DeadLetter.from_envelope(envelope, "permanent_error", ValueError("no"))
    assert misfit(shipped_schema("dead_letter"), letter.as_dict()) == ""


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"type": "string"}, 1, "not of type string"),
        ({"type": "integer"}, True, "not of type integer"),
        ({"type": "integer"}, 1.5, "not of type integer"),
        ({"type": ["string", "null"]}, 1, "not of type"),
        ({"type": "boolean"}, 0, "not of type"),
        ({"type": "array"}, {}, "not of type"),
        ({"type": "object"}, [], "not of type"),
        ({"type": "number"}, "1", "not of type"),
        ({"enum": ["a"]}, "b", "not one of"),
        ({"const": 1}, 2, "not the one"),
        ({"minimum": 2}, 1, "below 2"),
        ({"maximum": 2}, 3, "above 2"),
        ({"exclusiveMinimum": 2}, 2, "not above 2"),
        ({"exclusiveMaximum": 2}, 2, "not below 2"),
        ({"minLength": 2}, "a", "fewer than 2 characters"),
        ({"maxLength": 2}, "abc", "more than 2 characters"),
        ({"pattern": "^a"}, "b", "does not match"),
        ({"minItems": 1}, [], "fewer than 1 items"),
        ({"maxItems": 1}, [1, 2], "more than 1 items"),
        ({"required": ["a"]}, {}, r"data\.a: is missing"),
        ({"properties": {"a": {"type": "null"}}}, {"a": 1}, r"data\.a: is not of type null"),
        ({"additionalProperties": False}, {"a": 1}, r"data\.a: is not allowed"),
        ({"items": {"type": "string"}}, ["a", 1], r"data\[1\]"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "fits none"),
        ({"oneOf": [{"type": "number"}, {"minimum": 0}]}, 1, "exactly one"),
        ({"allOf": [{"type": "number"}, {"minimum": 2}]}, 1, "below 2"),
        ({"not": {"type": "string"}}, "a", "not allowed"),
        (False, 1, "not allowed"),
    ],
)
def test_a_value_that_does_not_fit_is_located(schema: Any, value: Any, problem: str) -> None:
    with pytest.raises(PayloadMismatch, match=problem):
        check_against(schema, value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (True, object()),
        ({"type": "integer"}, 2.0),
        ({"type": "number", "minimum": 1}, 1),
        ({"minLength": 5}, 1),
        ({"required": ["a"]}, "no object"),
        (
            {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "number"}},
            {"a": "x", "b": 1},
        ),
        ({"items": {"type": "string"}}, ["a", "b"]),
        ({"oneOf": [{"type": "string"}, {"type": "number"}]}, 1),
        ({"not": {"type": "string"}}, 1),
        ({"title": "anything", "description": "goes"}, None),
    ],
)
def test_a_value_that_fits_passes(schema: Any, value: Any) -> None:
    assert misfit(schema, value) == ""


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "#/x"}, "payload"),
        ({"properties": {"a": {"format": "email"}}}, "payload.properties.a"),
        ({"anyOf": [True, {"uniqueItems": True}]}, "payload.anyOf[1]"),
        ({"items": "string"}, "payload.items"),
        ([], "payload"),
    ],
)
def test_a_keyword_that_would_be_ignored_is_refused(schema: Any, place: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        refuse_unknown_keywords(schema)
    assert refused.value.field == place
