"""Pages and searches: the same jobs as the whole list, in bounded calls, whatever the size of a job."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.commands.conftest import NOW, QueueDriver
from tests.servers import Server
from toril.commands import envelope_pages, pages, read
from toril.commands.pages import FIRST_PAGE, JobFilter, PagePosition
from toril.errors import InvalidOption
from toril.protocol.keys import ListKeys, StreamKeys
from toril.protocol.state import JobState
from toril.transport import BlockingTransport

Raw = Callable[..., Any]
LARGE = 10 * 1024 * 1024


def all_pages(driver: QueueDriver, state: JobState, limit: int, *, newest_first: bool) -> list[str]:
    after, found = FIRST_PAGE, list[str]()
    while True:
        page = driver.run(
            pages.job_page(driver.keys, state, after=after, newest_first=newest_first, limit=limit)
        )
        assert len(page.rows) <= limit
        assert page.first == len(found)
        found += (row.id for row in page.rows)
        if page.next is None:
            assert page.total == len(found)
            return found
        after = PagePosition.parse(str(page.next))


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("state", ["waiting", "active", "failed", "completed", "delayed", "prioritized"])
def test_pages_have_the_jobs_of_the_whole_list_in_order(
    driver: QueueDriver, raw_command: Raw, state: str, newest_first: bool
) -> None:
    chance = random.Random(state)
    meant = JobState.parse(state)
    for number in range(137):
        if meant.suffix in ("wait", "active"):
            raw_command("LPUSH", driver.keys.base + meant.suffix, f"j{number}")
        else:  # many of the same score
            raw_command("ZADD", driver.keys.base + meant.suffix, chance.randint(1, 20), f"j{number}")
    whole = driver.run(read.get_ranges(driver.keys, [meant.suffix], ascending=not newest_first))
    assert all_pages(driver, meant, 10, newest_first=newest_first) == whole


def test_a_page_continues_after_its_last_job_though_jobs_came_and_went(
    driver: QueueDriver, raw_command: Raw
) -> None:
    for number in range(30):
        raw_command("LPUSH", driver.keys.wait, f"w{number}")
        raw_command("ZADD", driver.keys.failed, number, f"f{number}")
    waiting = driver.run(pages.job_page(driver.keys, JobState.WAITING, limit=10))
    failed = driver.run(pages.job_page(driver.keys, JobState.FAILED, limit=10))
    for number in range(30, 50):
        raw_command("LPUSH", driver.keys.wait, f"w{number}")
        raw_command("ZADD", driver.keys.failed, number, f"f{number}")
    raw_command("LREM", driver.keys.wait, 1, "w25")
    raw_command("ZREM", driver.keys.failed, "f20")  # the last of the page: continued by its score
    assert waiting.next is not None and failed.next is not None
    later = driver.run(pages.job_page(driver.keys, JobState.WAITING, after=waiting.next, limit=3))
    assert [row.id for row in later.rows] == ["w19", "w18", "w17"]
    later = driver.run(pages.job_page(driver.keys, JobState.FAILED, after=failed.next, limit=3))
    assert [row.id for row in later.rows] == ["f19", "f18", "f17"]


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_page_continues_where_a_removed_job_of_the_same_score_was(
    driver: QueueDriver, raw_command: Raw, newest_first: bool
) -> None:
    ids = [f"f{number:02}" for number in range(30)]
    for job_id in ids:
        raw_command("ZADD", driver.keys.failed, 7, job_id)
    raw_command("ZADD", driver.keys.failed, 6, "before", 8, "after")
    ordered = ["before", *ids, "after"][:: -1 if newest_first else 1]
    page = driver.run(pages.job_page(driver.keys, JobState.FAILED, newest_first=newest_first, limit=12))
    raw_command("ZREM", driver.keys.failed, *ordered[8:12])
    assert page.next is not None
    later = driver.run(
        pages.job_page(driver.keys, JobState.FAILED, after=page.next, newest_first=newest_first, limit=5)
    )
    assert [row.id for row in later.rows] == ordered[12:17]


def test_a_long_value_is_replaced_by_its_length(driver: QueueDriver, raw_command: Raw) -> None:
    driver.add("small", "large")
    raw_command("HSET", driver.keys.job("large"), "data", b"x" * LARGE, "name", b"n" * 5000)
    page = driver.run(pages.job_page(driver.keys, JobState.WAITING))
    large, small = (row.fields for row in page.rows)
    assert (large["data"], large["name"]) == (LARGE, 5000)
    assert (small["data"], small["name"], small["failedReason"]) == (b'{"n":1}', b"draw", None)
    fields = driver.run(
        pages.job_fields(driver.keys, "large", ["data", "timestamp"], longest=9000, max_bytes=9000)
    )
    assert fields == {"data": LARGE, "timestamp": str(NOW).encode()}


def test_a_page_of_many_long_values_is_of_bounded_size(
    driver: QueueDriver, raw_command: Raw, valkey: Server
) -> None:
    ids = [f"j{number}" for number in range(200)]
    driver.add(*ids)
    for job_id in ids:
        raw_command(
            "HSET",
            driver.keys.job(job_id),
            *(word for name in ("data", "pb", "rjk") for word in (name, b"x" * 2000)),
        )
    page = driver.run(pages.job_page(driver.keys, JobState.WAITING, limit=200))
    size = sum(len(value) for row in page.rows for value in row.fields.values() if isinstance(value, bytes))
    assert len(page.rows) == 200
    assert size <= pages.PAGE_BYTES


def search_all(driver: QueueDriver, state: JobState, wanted: JobFilter) -> tuple[list[str], list[str], int]:
    after: PagePosition | None = FIRST_PAGE
    found, large, examined = list[str](), list[str](), 0
    while after is not None:
        window = driver.run(pages.job_search(driver.keys, state, wanted, after=after))
        found += window.found
        large += window.large
        examined += window.examined
        after = window.next
    return found, large, examined


def test_a_search_finds_id_name_data_and_error_in_windows(driver: QueueDriver, raw_command: Raw) -> None:
    ids = [f"j{number}" for number in range(850)]
    assert len(ids) > 2 * pages.WINDOW_JOBS
    driver.add(*ids)
    raw_command("HSET", driver.keys.job("j3"), "data", '{"to":"Anna@Example.com"}')
    raw_command("HSET", driver.keys.job("j500"), "name", "send-EXAMPLE")
    raw_command("HSET", driver.keys.job("j849"), "failedReason", "no example")
    found, large, examined = search_all(driver, JobState.WAITING, JobFilter(text="eXample"))
    assert (found, large, examined) == (["j849", "j500", "j3"], [], len(ids))
    assert search_all(driver, JobState.WAITING, JobFilter(text="J849"))[0] == ["j849"]
    assert search_all(driver, JobState.WAITING, JobFilter(name="send-EXAMPLE"))[0] == ["j500"]
    assert search_all(driver, JobState.WAITING, JobFilter(text="%w+"))[0] == []  # no pattern


def test_a_search_looks_at_a_bounded_number_of_bytes_and_names_large_jobs(
    driver: QueueDriver, raw_command: Raw
) -> None:
    ids = [f"j{number}" for number in range(20)]
    driver.add(*ids)
    for job_id in ids:
        raw_command("HSET", driver.keys.job(job_id), "data", b"x" * 60_000)
    raw_command("HSET", driver.keys.job("j9"), "data", b"x" * LARGE)
    window = driver.run(pages.job_search(driver.keys, JobState.WAITING, JobFilter(text="y")))
    assert 0 < window.examined < 10
    assert search_all(driver, JobState.WAITING, JobFilter(text="y")) == ([], ["j9"], 20)


def test_a_search_since_a_time_uses_the_end_of_finished_jobs(driver: QueueDriver, raw_command: Raw) -> None:
    driver.add("old", "new")
    raw_command("HSET", driver.keys.job("new"), "timestamp", NOW + 5000)
    raw_command("ZADD", driver.keys.failed, NOW, "failed-old", NOW + 9000, "failed-new")
    assert search_all(driver, JobState.WAITING, JobFilter(since_ms=NOW + 1))[0] == ["new"]
    assert search_all(driver, JobState.FAILED, JobFilter(since_ms=NOW + 1))[0] == ["failed-new"]


@pytest.mark.parametrize("text", ["x~1~a", "1~zero~a", "1~2", "-1~2~a", "9" * 16 + "~1~a"])
def test_a_position_that_no_page_gave_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="after"):
        PagePosition.parse(text)


@pytest.mark.parametrize("newest_first", [True, False])
def test_envelopes_are_read_in_pages_of_bounded_size(
    prefix: str, transport: BlockingTransport, raw_command: Raw, newest_first: bool
) -> None:
    lists, streams = ListKeys("jobs.a", prefix), StreamKeys("jobs.a", prefix)
    texts = [b'{"job_id":"j%d"}' % number for number in range(25)]
    for number, text in enumerate(texts):
        raw_command("LPUSH", lists.queue, text)
        raw_command("ZADD", lists.scheduled, NOW + number, text)
        raw_command("XADD", streams.stream, "*", "envelope", text)
    wanted = texts[::-1] if newest_first else texts
    for keys, place in ((lists, "jobs"), (lists, "scheduled"), (streams, "jobs")):
        found, after = list[bytes](), ""
        while True:
            page = transport.run(
                envelope_pages.envelope_page(keys, place, after=after, newest_first=newest_first, limit=10)  # type: ignore[arg-type]
            )
            found += (row.text for row in page.rows)
            if page.next is None:
                break
            after = page.next
        assert found == wanted
        whole = transport.run(envelope_pages.envelope_page(keys, place, newest_first=newest_first, limit=25))  # type: ignore[arg-type]
        assert (len(whole.rows), whole.next) == (25, None), place


def test_a_flow_is_read_in_one_call_of_bounded_size(driver: QueueDriver, raw_command: Raw) -> None:
    keys = driver.keys

    def plant(job_id: str, *children: str) -> None:
        raw_command("HSET", keys.job(job_id), "name", f"name of {job_id}", "failedReason", "x" * LARGE)
        for child in children:
            raw_command("HSET", keys.processed(job_id), keys.job(child), "r" * LARGE)

    names = [f"child-{number}" for number in range(40)]
    plant("root", *names)
    plant("child-7", "grandchild")
    raw_command("SADD", keys.dependencies("root"), keys.job("repeat:nightly:17"))
    nodes = driver.run(pages.flow_tree(keys, "root", max_depth=3, max_children=50, max_nodes=100))
    known = {node.key.removeprefix(keys.base): node for node in nodes}
    assert {"root", "repeat:nightly:17", "grandchild", *names} == set(known)
    assert (known["root"].name, known["root"].error, known["root"].parent) == ("name of root", "", None)
    assert (known["root"].children.waiting, known["root"].children.processed) == (1, 40)
    assert nodes[known["grandchild"].parent or 0].key == keys.job("child-7")
    few = driver.run(pages.flow_tree(keys, "root", max_depth=3, max_children=10, max_nodes=8))
    assert len(few) == 8 and few[0].children.total == 41
    alone = driver.run(pages.flow_tree(keys, "root", max_depth=1, max_children=10, max_nodes=8))
    assert [node.key for node in alone] == [keys.job("root")]


def test_a_huge_envelope_is_cut_and_ends_its_page(
    prefix: str, transport: BlockingTransport, raw_command: Raw
) -> None:
    keys = ListKeys("jobs.a", prefix)
    raw_command("RPUSH", keys.queue, b"a" * LARGE, b"b" * LARGE, b"c")
    page = transport.run(envelope_pages.envelope_page(keys, "jobs"))
    assert [(row.length, len(row.text), len(row.tail)) for row in page.rows] == [
        (LARGE, envelope_pages.ENVELOPE_HEAD, envelope_pages.ENVELOPE_TAIL)
    ]
    assert page.next == "1"
    for wrong in ("x", "-1", "1-2"):
        with pytest.raises(InvalidOption, match="after"):
            envelope_pages.envelope_page(keys, "jobs", after=wrong)


def test_a_key_that_is_no_hash_is_a_job_without_fields(driver: QueueDriver, raw_command: Raw) -> None:
    driver.add("good")
    raw_command("LPUSH", driver.keys.wait, "strange")
    raw_command("SET", driver.keys.job("strange"), "a string")
    page = driver.run(pages.job_page(driver.keys, JobState.WAITING))
    assert [(row.id, row.fields["name"]) for row in page.rows] == [("strange", None), ("good", b"draw")]
    assert search_all(driver, JobState.WAITING, JobFilter(text="draw"))[0] == ["good"]
