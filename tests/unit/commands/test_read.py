"""Looking at a queue: values as they are stored, and what is said of things that are not there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.servers import Server
from tests.unit.commands.conftest import NOW, Hand
from toril.commands import manage, read, streams
from toril.commands.command import Replay, plain
from toril.commands.read import Finished, Metrics
from toril.commands.worker import Pickup, Settlement, finish_options
from toril.errors import RedisError
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport


def test_counts_name_all_eight_states(hand: Hand) -> None:
    hand.add("a", "b")
    hand.add("later", delay=60_000)
    hand.add("first", priority=1)
    hand.take()
    counts = hand.run(read.get_counts(hand.keys))
    assert tuple(counts) == read.COUNTED_STATES
    assert {state: count for state, count in counts.items() if count} == {
        "wait": 1,
        "active": 1,
        "delayed": 1,
        "prioritized": 1,
    }


def test_ranges_go_either_way_and_name_a_job_once(hand: Hand) -> None:
    hand.add("a", "b", "c")
    hand.add("later", delay=60_000)
    down = hand.run(read.get_ranges(hand.keys, ["waiting", "wait", "delayed"]))
    up = hand.run(read.get_ranges(hand.keys, ["wait", "delayed"], ascending=True))
    assert down == ["c", "b", "a", "later"]
    assert up == ["a", "b", "c", "later"]
    assert hand.run(read.get_ranges(hand.keys, ["wait"], start=0, end=0, ascending=True)) == ["a"]


def test_a_job_is_read_field_by_field_or_whole(hand: Hand) -> None:
    hand.add("a")
    flat = hand.run(read.get_job(hand.keys, "a"))
    assert dict(zip(flat[::2], flat[1::2], strict=True))[b"data"] == b'{"n":1}'
    assert hand.run(read.get_job(hand.keys, "nobody")) == []
    assert hand.run(read.get_fields(hand.keys, "a", ["name", "nothing"])) == [b"draw", None]


def test_replies_of_the_third_protocol_are_read_alike(hand: Hand) -> None:
    assert read.get_job(hand.keys, "a").decode({b"name": b"draw"}) == [b"name", b"draw"]
    assert read.read_events([hand.keys], ["0"], block_ms=None, count=1).decode(
        {b"events": [[b"1-0", [b"event", b"added"]]]}
    ) == {"events": [("1-0", {"event": "added"})]}
    assert read.server_info().decode({"redis_version": "7.0.0"}) == {"redis_version": "7.0.0"}
    assert streams.stream_state("s").decode({b"length": 1, b"last-generated-id": b"1-0"}).added is None


def test_the_state_of_a_job_is_named_as_upstream_does(hand: Hand) -> None:
    assert hand.run(read.get_state(hand.keys, "nobody")) == "unknown"
    hand.add("a")
    assert hand.run(read.get_state(hand.keys, "a")) == "waiting"


def test_whether_a_job_is_done_is_told_with_its_result(hand: Hand) -> None:
    assert hand.run(read.is_finished(hand.keys, "a")) == Finished("missing")
    hand.add("a", "b", "c")
    assert hand.run(read.is_finished(hand.keys, "a")) == Finished("pending")
    hand.take(3)
    hand.exchange(hand.finished("a"), hand.finished("b", failed=True), hand.finished("c", keep=0))
    assert hand.run(read.is_finished(hand.keys, "a")) == Finished("completed", b'"done"')
    assert hand.run(read.is_finished(hand.keys, "b")) == Finished("failed", b"why")
    assert hand.run(read.is_finished(hand.keys, "c")) == Finished("missing")


def test_an_event_can_tell_the_end_of_a_job() -> None:
    tell = read.finish_of_event
    assert tell("a", {"event": "completed", "jobId": "a", "returnvalue": "1"}) == Finished("completed", b"1")
    assert tell("a", {"event": "failed", "jobId": "a", "failedReason": "why"}) == Finished("failed", b"why")
    assert tell("a", {"event": "removed", "jobId": "a"}) == Finished("missing")
    assert tell("a", {"event": "completed", "jobId": "b"}) is None
    assert tell("a", {"event": "active", "jobId": "a"}) is None


def test_metrics_count_finished_jobs_by_minute(hand: Hand) -> None:
    assert hand.run(read.get_metrics(hand.keys, "completed")) == Metrics(0, 0, 0, [], 0)
    hand.add("a", "b", "c")
    pickup = Pickup(token="t1", lock_ms=30_000)
    options = finish_options(pickup=pickup, token="t1", keep={"count": -1}, attempts=1, metrics_size=10)
    for job_id in hand.take(3):
        hand.exchange(Settlement(job_id=job_id, kind="completed", token="t1", value="1", options=options))
        hand.now += 60_000
    found = hand.run(read.get_metrics(hand.keys, "completed"))
    assert (found.count, found.points) == (3, 2)
    assert found.minutes == [1, 1]
    assert found.previous_at_ms == NOW + 120_000


def test_counts_per_priority(hand: Hand) -> None:
    hand.add("a")
    hand.add("b", "c", priority=2)
    assert hand.run(read.get_counts_per_priority(hand.keys, [0, 2, 5])) == {0: 1, 2: 2, 5: 0}


class TestEvents:
    def test_are_read_from_an_id_on(self, hand: Hand) -> None:
        hand.add("a")
        (first, fields), *rest = hand.run(read.range_events(hand.keys))
        assert fields == {"event": "added", "jobId": "a", "name": "draw"}
        found = hand.run(read.read_events([hand.keys], [first], block_ms=None, count=10))
        assert found == {hand.keys.events: rest}

    def test_are_none_when_there_are_none(self, hand: Hand) -> None:
        assert hand.run(read.last_event_id(hand.keys)) == "0-0"
        assert hand.run(read.read_events([hand.keys], ["0"], block_ms=1, count=10)) == {}
        hand.add("a")
        assert hand.run(read.last_event_id(hand.keys)) == hand.run(read.range_events(hand.keys))[-1][0]


def test_the_server_tells_its_time_version_and_clients(hand: Hand) -> None:
    assert hand.run(read.server_time()) > 1_700_000_000
    assert "redis_version" in hand.run(read.server_info())
    assert any(
        client["lib-name"].startswith("toril") or client["cmd"] for client in hand.run(read.client_list())
    )


class TestASecondLook:
    def test_at_lengths_is_the_same_as_the_counts(self, hand: Hand) -> None:
        hand.add("a", "b")
        hand.add("later", delay=60_000)
        hand.take()
        found = [hand.run(command) for command in read.lengths(hand.keys)]
        assert found == [1, 0, 1, 0, 1, 0, 0, 0]
        hand.finish("a")
        assert hand.run(read.count_ended(hand.keys, "completed")) == 1
        assert hand.run(read.count_ended(hand.keys, "failed")) == 0

    def test_at_a_lock_names_its_holder(self, hand: Hand) -> None:
        hand.add("a")
        assert hand.run(read.get_lock(hand.keys, "a")) is None
        hand.take()
        assert hand.run(read.get_lock(hand.keys, "a")) == "t1"

    def test_at_keys_of_our_own_finds_them_all(self, valkey: Server, prefix: str) -> None:
        keys = QueueKeys("odd[name]*?", prefix, hash_tag=False)
        with BlockingTransport(valkey.url) as transport, valkey.client() as client:
            mine = {keys.toril(f"ledger:{n}") for n in range(30)}
            for key in mine:
                client.set(key, "x")
            client.set(f"{prefix}:oddn:toril:other", "x")
            cursor, found = "0", []
            while True:
                cursor, some = transport.run(read.scan_own(keys, cursor))
                found += some
                if cursor == "0":
                    break
            assert set(found) == mine
            assert transport.run(manage.delete_keys(found)) == 30

    def test_at_events_counts_those_that_are_gone(self, hand: Hand, spoil: Callable) -> None:
        hand.add("a", "b")
        last = hand.run(read.last_events(hand.keys, 2))
        assert last == hand.run(read.range_events(hand.keys))[-2:]
        spoil("XTRIM", hand.keys.events, "MAXLEN", 1)
        assert hand.run(read.event_total(hand.keys)) == 4
        assert read.event_total(hand.keys).decode([b"length", 3]) == 3  # A server that does not count them.


def test_a_worker_is_told_which_of_its_jobs_shall_end(hand: Hand) -> None:
    hand.run(manage.ask_to_cancel(hand.keys, "a", "token", "enough,\nnow", 60_000))
    wanted = read.get_cancellations(hand.keys, ["a", "b"])
    assert hand.run(wanted) == [("token", "enough,\nnow"), None]
    hand.run(manage.forget_cancel(hand.keys, "a"))
    assert hand.run(wanted) == [None, None]


def test_logs_can_be_cleared(hand: Hand) -> None:
    hand.add("a")
    for line in "abc":
        hand.run(manage.add_log(hand.keys, "a", line, keep=None))
    lines, _ = read.get_logs(hand.keys, "a")
    hand.run(manage.clear_logs(hand.keys, "a", keep=1))
    assert hand.run(lines) == ["c"]
    hand.run(manage.clear_logs(hand.keys, "a"))
    assert hand.run(lines) == []


def test_a_held_rate_can_be_released(hand: Hand) -> None:
    hand.run(manage.hold_rate(hand.keys, 60_000))
    hand.run(manage.release_rate(hand.keys))
    assert hand.run(read.get_rate_limit_ttl(hand.keys)) == -2


class TestStreams:
    def test_tell_their_figures(self, hand: Hand, spoil: Callable) -> None:
        key = hand.keys.events
        with pytest.raises(RedisError, match="no such key"):
            hand.run(streams.stream_state(key))
        ids = [spoil("XADD", key, "*", "n", n).decode() for n in range(5)]
        state = hand.run(streams.stream_state(key))
        assert (state.length, state.added, state.first_id, state.last_id) == (5, 5, ids[0], ids[-1])
        spoil("XTRIM", key, "MAXLEN", 0)
        assert hand.run(streams.stream_state(key)).first_id is None

    def test_are_read_by_pages(self, hand: Hand, spoil: Callable) -> None:
        ids = [spoil("XADD", hand.keys.events, "*", "n", n).decode() for n in range(5)]
        page = hand.run(streams.entries(hand.keys.events, ids[0], ids[3], 2))
        assert [entry[0].decode() for entry in page] == ids[1:3]

    def test_are_walked_with_an_exact_count_of_what_was_trimmed(self, hand: Hand, spoil: Callable) -> None:
        key = hand.keys.events
        ids = [spoil("XADD", key, "*", "n", n).decode() for n in range(6)]
        assert hand.run(streams.walk(key, ids[0], 2)) == streams.Step(2, ids[2], None)
        spoil("XTRIM", key, "MAXLEN", 2)
        assert hand.run(streams.walk(key, ids[0], 10)) == streams.Step(2, ids[5], 4)
        assert hand.run(streams.walk(key, ids[5], 10)) == streams.Step(0, ids[5], None)

    def test_are_followed_in_one_look(self, hand: Hand, spoil: Callable) -> None:
        key = hand.keys.events
        empty = hand.run(streams.follow(key, "0-0", 10))
        assert (empty.entries, empty.state.length) == ([], 0)
        ids = [spoil("XADD", key, "*", "n", n).decode() for n in range(4)]
        spoil("XTRIM", key, "MAXLEN", 3)
        page = hand.run(streams.follow(key, ids[1], 10, count_before=True))
        assert page.entries == [(ids[2], {"n": "2"}), (ids[3], {"n": "3"})]
        assert (page.trimmed, page.before) == (1, 1)


class TestACommand:
    def test_has_a_name_and_both_spellings(self, hand: Hand) -> None:
        script = manage.update_progress(hand.keys, "a", b"1")
        assert script.evalsha()[:3] == ("EVALSHA", script.script.sha1, len(script.keys))
        assert script.eval()[:3] == ("EVAL", script.script.text, len(script.keys))
        assert script.eval()[3:] == script.evalsha()[3:]

    def test_without_a_script_is_sent_as_it_is(self) -> None:
        command = plain(int, "LLEN", "k")
        assert (command.name, command.eval(), command.evalsha()) == ("LLEN", ("LLEN", "k"), ("LLEN", "k"))
        assert command.replay is Replay.SAFE
        assert plain(int, "INCR", "k", replay=Replay.NEVER).replay is Replay.NEVER

    def test_can_have_a_further_step_of_decoding(self, hand: Hand) -> None:
        counts = read.get_counts(hand.keys)
        total = counts.then(lambda found: sum(found.values()))
        assert hand.run(total) == 0
        assert (total.script, total.keys, total.replay) == (counts.script, counts.keys, counts.replay)
