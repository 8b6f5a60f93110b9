"""Looking at a queue: values as they are stored, and what is said of things that are not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.commands.conftest import NOW, QueueDriver
from tests.servers import Server
from toril.commands import manage, read, server, streams
from toril.commands.command import Replay, plain
from toril.commands.read import Finished, Metrics
from toril.commands.worker import Pickup, Settlement, finish_options
from toril.errors import RedisError
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport


def test_counts_name_all_eight_states(driver: QueueDriver) -> None:
    driver.add("a", "b")
    driver.add("later", delay=60_000)
    driver.add("first", priority=1)
    driver.take()
    counts = driver.run(read.get_counts(driver.keys))
    assert tuple(counts) == read.COUNTED_STATES
    assert {state: count for state, count in counts.items() if count} == {
        "wait": 1,
        "active": 1,
        "delayed": 1,
        "prioritized": 1,
    }


def test_ranges_go_either_way_and_name_a_job_once(driver: QueueDriver) -> None:
    driver.add("a", "b", "c")
    driver.add("later", delay=60_000)
    down = driver.run(read.get_ranges(driver.keys, ["waiting", "wait", "delayed"]))
    up = driver.run(read.get_ranges(driver.keys, ["wait", "delayed"], ascending=True))
    assert down == ["c", "b", "a", "later"]
    assert up == ["a", "b", "c", "later"]
    assert driver.run(read.get_ranges(driver.keys, ["wait"], start=0, end=0, ascending=True)) == ["a"]


def test_a_job_is_read_field_by_field_or_whole(driver: QueueDriver) -> None:
    driver.add("a")
    flat = driver.run(read.get_job(driver.keys, "a"))
    assert dict(zip(flat[::2], flat[1::2], strict=True))[b"data"] == b'{"n":1}'
    assert driver.run(read.get_job(driver.keys, "nobody")) == []
    assert driver.run(read.get_fields(driver.keys, "a", ["name", "nothing"])) == [b"draw", None]


def test_replies_of_the_third_protocol_are_read_alike(driver: QueueDriver) -> None:
    assert read.get_job(driver.keys, "a").decode({b"name": b"draw"}) == [b"name", b"draw"]
    assert read.read_events([driver.keys], ["0"], block_ms=None, count=1).decode(
        {b"events": [[b"1-0", [b"event", b"added"]]]}
    ) == {"events": [("1-0", {"event": "added"})]}
    assert server.server_info().decode({"redis_version": "7.0.0"}) == {"redis_version": "7.0.0"}
    assert streams.stream_state("s").decode({b"length": 1, b"last-generated-id": b"1-0"}).added is None


def test_the_state_of_a_job_is_named_as_upstream_does(driver: QueueDriver) -> None:
    assert driver.run(read.get_state(driver.keys, "nobody")) == "unknown"
    driver.add("a")
    assert driver.run(read.get_state(driver.keys, "a")) == "waiting"


def test_whether_a_job_is_done_is_returned_with_its_result(driver: QueueDriver) -> None:
    assert driver.run(read.is_finished(driver.keys, "a")) == Finished("missing")
    driver.add("a", "b", "c")
    assert driver.run(read.is_finished(driver.keys, "a")) == Finished("pending")
    driver.take(3)
    driver.exchange(driver.finished("a"), driver.finished("b", failed=True), driver.finished("c", keep=0))
    assert driver.run(read.is_finished(driver.keys, "a")) == Finished("completed", b'"done"')
    assert driver.run(read.is_finished(driver.keys, "b")) == Finished("failed", b"why")
    assert driver.run(read.is_finished(driver.keys, "c")) == Finished("missing")


def test_an_event_can_report_the_end_of_a_job() -> None:
    tell = read.finished_by_event
    assert tell("a", {"event": "completed", "jobId": "a", "returnvalue": "1"}) == Finished("completed", b"1")
    assert tell("a", {"event": "failed", "jobId": "a", "failedReason": "why"}) == Finished("failed", b"why")
    assert tell("a", {"event": "removed", "jobId": "a"}) == Finished("missing")
    assert tell("a", {"event": "completed", "jobId": "b"}) is None
    assert tell("a", {"event": "active", "jobId": "a"}) is None


def test_metrics_count_finished_jobs_by_minute(driver: QueueDriver) -> None:
    assert driver.run(read.get_metrics(driver.keys, "completed")) == Metrics(0, 0, 0, [], 0)
    driver.add("a", "b", "c")
    pickup = Pickup(token="t1", lock_ms=30_000)
    options = finish_options(pickup=pickup, token="t1", keep={"count": -1}, attempts=1, metrics_size=10)
    for job_id in driver.take(3):
        driver.exchange(Settlement(job_id=job_id, kind="completed", token="t1", value="1", options=options))
        driver.now += 60_000
    found = driver.run(read.get_metrics(driver.keys, "completed"))
    assert (found.count, found.points) == (3, 2)
    assert found.minutes == [1, 1]
    assert found.previous_at_ms == NOW + 120_000


def test_counts_per_priority(driver: QueueDriver) -> None:
    driver.add("a")
    driver.add("b", "c", priority=2)
    assert driver.run(read.get_counts_per_priority(driver.keys, [0, 2, 5])) == {0: 1, 2: 2, 5: 0}


class TestEvents:
    def test_are_read_from_an_id_on(self, driver: QueueDriver) -> None:
        driver.add("a")
        (first, fields), *rest = driver.run(read.range_events(driver.keys))
        assert fields == {"event": "added", "jobId": "a", "name": "draw"}
        found = driver.run(read.read_events([driver.keys], [first], block_ms=None, count=10))
        assert found == {driver.keys.events: rest}

    def test_are_none_when_there_are_none(self, driver: QueueDriver) -> None:
        assert driver.run(read.last_event_id(driver.keys)) == "0-0"
        assert driver.run(read.read_events([driver.keys], ["0"], block_ms=1, count=10)) == {}
        driver.add("a")
        assert (
            driver.run(read.last_event_id(driver.keys)) == driver.run(read.range_events(driver.keys))[-1][0]
        )


def test_the_server_returns_its_time_version_and_clients(driver: QueueDriver) -> None:
    assert driver.run(server.server_time()) > 1_700_000_000
    assert "redis_version" in driver.run(server.server_info())
    assert any(
        client["lib-name"].startswith("toril") or client["cmd"] for client in driver.run(server.client_list())
    )


class TestASecondLook:
    def test_at_lengths_is_the_same_as_the_counts(self, driver: QueueDriver) -> None:
        driver.add("a", "b")
        driver.add("later", delay=60_000)
        driver.take()
        found = [driver.run(command) for command in read.lengths(driver.keys)]
        assert found == [1, 0, 1, 0, 1, 0, 0, 0]
        driver.finish("a")
        assert driver.run(read.count_ended(driver.keys, "completed")) == 1
        assert driver.run(read.count_ended(driver.keys, "failed")) == 0

    def test_at_a_lock_names_its_holder(self, driver: QueueDriver) -> None:
        driver.add("a")
        assert driver.run(read.get_lock(driver.keys, "a")) is None
        driver.take()
        assert driver.run(read.get_lock(driver.keys, "a")) == "t1"

    def test_at_keys_of_our_own_finds_them_all(self, valkey: Server, prefix: str) -> None:
        keys = QueueKeys("odd[name]*?", prefix, hash_tag=False)
        with BlockingTransport(valkey.url) as transport, valkey.client() as client:
            mine = {keys.toril(f"ledger:{n}") for n in range(30)}
            for key in mine:
                client.set(key, "x")
            client.set(f"{prefix}:oddn:toril:other", "x")
            cursor, found = "0", []
            while True:
                cursor, some = transport.run(read.scan_keys(keys, cursor, [keys.toril("")]))
                found += some
                if cursor == "0":
                    break
            assert set(found) == mine
            assert transport.run(manage.delete_keys(found)) == 30

    def test_at_events_counts_those_that_are_gone(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        driver.add("a", "b")
        last = driver.run(read.last_events(driver.keys, 2))
        assert last == driver.run(read.range_events(driver.keys))[-2:]
        raw_command("XTRIM", driver.keys.events, "MAXLEN", 1)
        assert driver.run(read.event_total(driver.keys)) == 4
        assert read.event_total(driver.keys).decode([b"length", 3]) == 3  # A server that does not count them.


def test_a_worker_receives_which_of_its_jobs_are_cancelled(driver: QueueDriver) -> None:
    driver.run(manage.request_cancel(driver.keys, "a", "token", "enough,\nnow", 60_000))
    wanted = read.get_cancellations(driver.keys, ["a", "b"])
    assert driver.run(wanted) == [("token", "enough,\nnow"), None]
    driver.run(manage.withdraw_cancel(driver.keys, "a"))
    assert driver.run(wanted) == [None, None]


def test_logs_can_be_cleared(driver: QueueDriver) -> None:
    driver.add("a")
    for line in "abc":
        driver.run(manage.add_log(driver.keys, "a", line, keep=None))
    lines, _ = read.get_logs(driver.keys, "a")
    driver.run(manage.clear_logs(driver.keys, "a", keep=1))
    assert driver.run(lines) == ["c"]
    driver.run(manage.clear_logs(driver.keys, "a"))
    assert driver.run(lines) == []


def test_a_held_rate_can_be_released(driver: QueueDriver) -> None:
    driver.run(manage.start_rate_limit(driver.keys, 60_000))
    driver.run(manage.remove_rate_limit(driver.keys))
    assert driver.run(read.get_rate_limit_ttl(driver.keys)) == -2


class TestStreams:
    def test_return_their_figures(self, driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        key = driver.keys.events
        with pytest.raises(RedisError, match="no such key"):
            driver.run(streams.stream_state(key))
        ids = [raw_command("XADD", key, "*", "n", n).decode() for n in range(5)]
        state = driver.run(streams.stream_state(key))
        assert (state.length, state.added, state.first_id, state.last_id) == (5, 5, ids[0], ids[-1])
        raw_command("XTRIM", key, "MAXLEN", 0)
        assert driver.run(streams.stream_state(key)).first_id is None

    def test_are_read_by_pages(self, driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        ids = [raw_command("XADD", driver.keys.events, "*", "n", n).decode() for n in range(5)]
        page = driver.run(streams.entries(driver.keys.events, ids[0], ids[3], 2))
        assert [entry[0].decode() for entry in page] == ids[1:3]

    def test_are_walked_with_an_exact_count_of_what_was_trimmed(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        key = driver.keys.events
        ids = [raw_command("XADD", key, "*", "n", n).decode() for n in range(6)]
        assert driver.run(streams.walk(key, ids[0], 2)) == streams.Step(2, ids[2], None)
        raw_command("XTRIM", key, "MAXLEN", 2)
        assert driver.run(streams.walk(key, ids[0], 10)) == streams.Step(2, ids[5], 4)
        assert driver.run(streams.walk(key, ids[5], 10)) == streams.Step(0, ids[5], None)

    def test_are_followed_in_one_look(self, driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        key = driver.keys.events
        empty = driver.run(streams.follow(key, "0-0", 10))
        assert (empty.entries, empty.state.length) == ([], 0)
        ids = [raw_command("XADD", key, "*", "n", n).decode() for n in range(4)]
        raw_command("XTRIM", key, "MAXLEN", 3)
        page = driver.run(streams.follow(key, ids[1], 10, count_before=True))
        assert page.entries == [(ids[2], {"n": "2"}), (ids[3], {"n": "3"})]
        assert (page.trimmed, page.before) == (1, 1)


class TestACommand:
    def test_has_a_name_and_both_spellings(self, driver: QueueDriver) -> None:
        script = manage.update_progress(driver.keys, "a", b"1")
        assert script.script is not None
        assert script.evalsha()[:3] == ("EVALSHA", script.script.sha1, len(script.keys))
        assert script.eval()[:3] == ("EVAL", script.script.text, len(script.keys))
        assert script.eval()[3:] == script.evalsha()[3:]

    def test_without_a_script_is_sent_as_it_is(self) -> None:
        command = plain(int, "LLEN", "k")
        assert (command.name, command.eval(), command.evalsha()) == ("LLEN", ("LLEN", "k"), ("LLEN", "k"))
        assert command.replay is Replay.SAFE
        assert plain(int, "INCR", "k", replay=Replay.NEVER).replay is Replay.NEVER

    def test_can_have_a_further_step_of_decoding(self, driver: QueueDriver) -> None:
        counts = read.get_counts(driver.keys)
        total = counts.then(lambda found: sum(found.values()))
        assert driver.run(total) == 0
        assert (total.script, total.keys, total.replay) == (counts.script, counts.keys, counts.replay)
