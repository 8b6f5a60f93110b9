"""Jobs of unknown names are delayed together, before they are fetched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.commands.conftest import NOW, QueueDriver
from toril.commands.name_refusals import RefusedNames, refuse_names
from toril.protocol.refusals import GIVE_UP_AFTER, JOB_FIELD, Refusals

RawCommand = Callable[..., Any]


def refuse(driver: QueueDriver, *known: str, limit: int = 100, now_ms: int = NOW) -> RefusedNames:
    return driver.run(refuse_names(driver.keys, known, limit=limit, factor=1.0, now_ms=now_ms))


def name_jobs(raw_command: RawCommand, driver: QueueDriver, **names: str) -> None:
    for job_id, name in names.items():
        raw_command("HSET", driver.keys.job(job_id), "name", name)


def test_unknown_names_are_delayed_and_the_others_keep_their_order(
    driver: QueueDriver, raw_command: RawCommand
) -> None:
    driver.add("a", "b", "c", "d", "e", "f")
    name_jobs(raw_command, driver, a="new", b="old", c="new", d="newer", e="old", f="new")
    assert refuse(driver, "old", limit=5) == RefusedNames(5, {"new": 2, "newer": 1})
    assert raw_command("LRANGE", driver.keys.wait, 0, -1) == [b"f", b"e", b"b"]
    due = (NOW + 1000) * 4096
    delayed = raw_command("ZRANGE", driver.keys.delayed, 0, -1)
    assert delayed == [b"a", b"c", b"d"]
    assert [float(raw_command("ZSCORE", driver.keys.delayed, one)) for one in delayed] == [
        due,
        due + 1,
        due + 2,
    ]
    assert raw_command("HMGET", driver.keys.job("a"), "delay", JOB_FIELD, "ats", "atm") == [
        b"1000",
        b"1 %d 0" % NOW,
        None,
        None,
    ]
    assert float(raw_command("ZSCORE", driver.keys.marker, "1")) == NOW + 1000
    events = [fields for _, fields in raw_command("XRANGE", driver.keys.events, "-", "+")]
    assert [one[b"jobId"] for one in events if one[b"event"] == b"delayed"] == [b"a", b"c", b"d"]


def test_delays_double_and_a_later_fetch_reads_the_note(driver: QueueDriver, raw_command: RawCommand) -> None:
    driver.add("a")
    for count in (1, 2, 3):
        assert refuse(driver, now_ms=NOW + count).total == 1
        assert raw_command("HGET", driver.keys.job("a"), "delay") == b"%d" % (1000 * 2 ** (count - 1))
        raw_command("ZREM", driver.keys.delayed, "a")
        raw_command("LPUSH", driver.keys.wait, "a")
    note = raw_command("HGET", driver.keys.job("a"), JOB_FIELD)
    assert Refusals.from_field(note, attempts_started=1) == Refusals(3, NOW + 1)
    assert Refusals.from_field(note, attempts_started=2) is None  # another worker ran it in between
    raw_command("HSET", driver.keys.job("a"), "ats", 1)
    assert refuse(driver, now_ms=NOW + 9).total == 1
    assert raw_command("HGET", driver.keys.job("a"), JOB_FIELD) == b"1 %d 1" % (NOW + 9)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("rjk", "nightly"), id="the next run of a scheduler"),
        pytest.param((JOB_FIELD, f"9 {NOW - int(GIVE_UP_AFTER * 1000)} 0"), id="refused for an hour"),
        pytest.param(("ats", "many"), id="a hash that cannot be read"),
    ],
)
def test_what_a_fetch_must_decide_stays(
    driver: QueueDriver, raw_command: RawCommand, change: tuple[str, str]
) -> None:
    driver.add("a")
    raw_command("HSET", driver.keys.job("a"), *change)
    assert refuse(driver) == RefusedNames(1, {})
    assert raw_command("LRANGE", driver.keys.wait, 0, -1) == [b"a"]


def test_names_that_live_workers_have_announced_are_left_to_them(
    driver: QueueDriver, raw_command: RawCommand
) -> None:
    driver.add("a", "b")
    name_jobs(raw_command, driver, a="new", b="gone")
    names = driver.keys.toril("names")
    raw_command("ZADD", names, NOW + 1, "new", NOW - 1, "gone")
    assert refuse(driver) == RefusedNames(2, {"gone": 1})
    raw_command("ZADD", names, NOW + 1, "*")
    assert refuse(driver) == RefusedNames(0, {})
    assert raw_command("LRANGE", driver.keys.wait, 0, -1) == [b"a"]


def test_a_key_of_another_type_loses_no_job(driver: QueueDriver, raw_command: RawCommand) -> None:
    driver.add("a")
    raw_command("SET", driver.keys.delayed, "text")
    with pytest.raises(Exception, match="WRONGTYPE"):
        refuse(driver)
    assert raw_command("LRANGE", driver.keys.wait, 0, -1) == [b"a"]
