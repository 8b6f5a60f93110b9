"""Filters of dead letters, from words."""

from __future__ import annotations

import pytest

from toril import Envelope, InvalidOption
from toril.backends.dead_letters import parse_filter
from toril.protocol.envelope import DeadLetter

PAYLOAD = {
    "userId": 5,
    "ok": True,
    "none": None,
    "order": {"id": "a7", "lines": [1, 2]},
    "x-y": "1",
    "a.b": "dotted",
    "grüezi": "q",
    "text": 'a, "b"',
}
LETTER = DeadLetter.from_envelope(
    Envelope.new("charge", PAYLOAD, user_id="u1", source="api"), "permanent_error", "Refused: a, b = c"
)


@pytest.mark.parametrize(
    "text",
    [
        *("payload.userId=5", "payload.ok=true", "payload.none=null", "payload.order.id=a7", "payload.x-y=1"),
        *("payload.a.b=dotted", "payload.grüezi=q", 'payload.order.lines="[1,2]"', "payload.order~a7"),
        *("attempts=0", "max_attempts=5", "correlation_id~-", "user_id=u1", "source!=web", "last_error~="),
        *(
            'last_error~"a, b"',
            r'payload.text="a, \"b\""',
            " task_type = charge , dlq_reason=permanent_error ",
        ),
        *(
            "dlq_ts>2020-01-01",
            "dlq_ts<=2999-12-31T23:59:59Z",
            "payload.userId>=5",
            "payload.userId<6",
            "attempts<1",
        ),
        *("payload.nothing!=1", "payload.nothing=null"),
    ],
)
def test_a_term_that_holds(text: str) -> None:
    assert parse_filter(text)(LETTER)


@pytest.mark.parametrize(
    "text",
    [
        *("payload.userId=6", "payload.ok=True", "payload.order.id=a", "payload.ok>0", "payload.nothing>0"),
        *(
            "task_type=charge,attempts=1",
            "dlq_ts<2020-01-01",
            "last_error~timeout",
            "payload.order.id.more=1",
        ),
    ],
)
def test_a_term_that_does_not_hold(text: str) -> None:
    assert not parse_filter(text)(LETTER)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("colour=red", "is not a field"),
        ("payload.=1", "is not a field"),
        ("payload=1", "is not a field"),
        ("last_error~a,b", "needs quotes"),
        ("last_error", "is not a term"),
        ("=red", "is not a term"),
        ("dlq_ts>yesterday", "is not a time"),
        ("attempts>many", "is not a number"),
        ('last_error="open', "is not a term"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        parse_filter(text)
