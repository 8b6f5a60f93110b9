"""Adding: each job is answered for apart, and a call repeated under its ledger adds nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.commands.conftest import NOW, QueueDriver
from tests.servers import Server
from toril.commands import manage, read
from toril.commands.add import LEDGER_MS, Existing, JobToAdd, Ledger, add_flows, add_job, add_jobs
from toril.commands.command import Command, Replay
from toril.errors import (
    ParentCannotBeReplaced,
    ParentNotFound,
    RedisOutOfMemory,
    RedisUnavailable,
    ScriptFailed,
)
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport, ConnectionPolicy

Options = dict[str, Any]


def job(job_id: str = "", **more: Any) -> JobToAdd:
    return JobToAdd(
        name="draw", data=b"{}", options=more.pop("options", {}), timestamp=NOW, id=job_id, **more
    )


def test_a_batch_gives_an_id_for_each_job_in_order(driver: QueueDriver) -> None:
    jobs = [job("a"), job(), job("b", options={"delay": 5}), job("c", options={"priority": 2})]
    assert driver.run(add_jobs(driver.keys, jobs)) == ["a", "2", "b", "c"]  # Every job counts, named or not.
    counts = driver.run(read.get_counts(driver.keys))
    assert (counts["wait"], counts["delayed"], counts["prioritized"]) == (2, 1, 1)


def test_the_kind_is_chosen_as_upstream_chooses() -> None:
    assert job(options={"delay": 5, "priority": 2}).kind == "delayed"
    assert job(options={"delay": 0, "priority": 2}).kind == "prioritized"
    assert job(options={"delay": 5}, waits_for_children=True).kind == "parent"
    assert job(options={"priority": 0}).kind == "standard"


@pytest.mark.parametrize(
    ("options", "more", "state"),
    [
        ({}, {}, "waiting"),
        ({"delay": 60_000}, {}, "delayed"),
        ({"priority": 3}, {}, "prioritized"),
        ({}, {"waits_for_children": True}, "waiting-children"),
    ],
)
def test_a_single_add_puts_the_job_where_it_belongs(
    driver: QueueDriver, options: Options, more: Options, state: str
) -> None:
    assert driver.run(add_job(driver.keys, job("a", options=options, **more))) == "a"
    assert driver.run(read.get_state(driver.keys, "a")) == state


def fields_of(existing: object) -> dict[bytes, bytes]:
    assert isinstance(existing, Existing)
    return dict(zip(existing.hash[::2], existing.hash[1::2], strict=True))


OPTIONS: list[Options] = [{}, {"delay": 60_000}, {"priority": 3}, {"de": {"id": "same"}}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("company", [0, 3])
def test_an_id_that_exists_is_answered_with_the_stored_job(
    driver: QueueDriver, options: Options, company: int
) -> None:
    """By the short ways, alone and in company, and by the official bodies."""
    first = JobToAdd(name="paint", data=b'{"n":1}', options={}, timestamp=NOW, id="a")
    assert driver.run(add_jobs(driver.keys, [first])) == ["a"]
    others = [job(f"new-{n}") for n in range(company)]
    *added, existing = driver.run(add_jobs(driver.keys, [*others, job("a", options=options)]))
    assert added == [one.id for one in others]
    assert isinstance(existing, Existing) and existing.id == "a"
    assert fields_of(existing)[b"data"] == b'{"n":1}'
    assert driver.run(read.get_counts(driver.keys))["wait"] == 1 + company


@pytest.mark.parametrize("given", ["b", ""])
@pytest.mark.parametrize("options", [{}, {"delay": 60_000}, {"priority": 3}])
def test_a_deduplicated_job_is_answered_with_the_job_that_stands_for_it(
    driver: QueueDriver, given: str, options: Options
) -> None:
    same = {"de": {"id": "same"}, **options}
    stored, existing = driver.run(add_jobs(driver.keys, [job("a", options=same), job(given, options=same)]))
    assert isinstance(existing, Existing)
    assert (stored, existing.id) == ("a", "a")
    assert fields_of(existing)[b"name"] == b"draw"


@pytest.mark.parametrize("given", ["a", "b", ""])
def test_a_deduplicated_job_whose_stand_in_is_gone_is_not_taken_for_added(
    driver: QueueDriver, given: str
) -> None:
    throttled = {"de": {"id": "same", "ttl": 60_000}}
    assert driver.run(add_jobs(driver.keys, [job("a", options=throttled)])) == ["a"]
    assert driver.take() == ["a"]
    assert driver.finish("a", keep=0).ack_errors == [None]
    assert driver.run(add_jobs(driver.keys, [job(given, options=throttled)])) == [Existing("a", [])]


def test_a_replaced_job_is_new(driver: QueueDriver) -> None:
    debounced = {"delay": 60_000, "de": {"id": "same", "ttl": 60_000, "extend": True, "replace": True}}
    assert driver.run(add_jobs(driver.keys, [job("a", options=debounced), job("b", options=debounced)])) == [
        "a",
        "b",
    ]
    assert driver.run(read.get_counts(driver.keys))["delayed"] == 1


def test_a_repeated_call_says_again_which_jobs_existed(
    driver: QueueDriver, raw_command: Callable[..., Any]
) -> None:
    """The ledger does not hold their data, which may be large."""
    large = JobToAdd(name="draw", data=b'"%s"' % (b"x" * 100_000), options={}, timestamp=NOW, id="a")
    driver.run(add_jobs(driver.keys, [large]))
    call = add_jobs(driver.keys, [job("a"), job("b")], Ledger(driver.keys.toril("ledger:p1"), "1"))
    first, again = driver.run(call), driver.run(call)
    assert first == again
    assert fields_of(again[0])[b"data"] == large.data
    assert again[1] == "b"
    assert raw_command("STRLEN", driver.keys.toril("ledger:p1")) < 200


def test_a_child_without_a_parent_fails_alone(driver: QueueDriver) -> None:
    parent = {"id": "nobody", "queueKey": driver.keys.qualified}
    orphan = job("a", parent=parent, parent_key=driver.keys.job("nobody"))
    refused, added = driver.run(add_jobs(driver.keys, [orphan, job("b")]))
    assert isinstance(refused, ParentNotFound)
    assert refused.job_id == "a"
    assert added == "b"
    with pytest.raises(ParentNotFound):
        driver.run(add_job(driver.keys, orphan))


def test_a_child_cannot_change_its_parent(driver: QueueDriver) -> None:
    driver.add("p1", "p2", waits_for_children=True)
    children = [
        job("c", parent={"id": one, "queueKey": driver.keys.qualified}, parent_key=driver.keys.job(one))
        for one in ("p1", "p2")
    ]
    added, refused = driver.run(add_jobs(driver.keys, children))
    assert added == "c"
    assert isinstance(refused, ParentCannotBeReplaced)


def test_a_job_that_makes_a_script_raise_fails_alone(
    driver: QueueDriver, raw_command: Callable[..., Any]
) -> None:
    raw_command("HSET", driver.keys.delayed, "not", "a zset")
    failed, added = driver.run(add_jobs(driver.keys, [job("a", options={"delay": 5}), job("b")]))
    assert isinstance(failed, ScriptFailed)
    assert "WRONGTYPE" in str(failed)
    assert added == "b"


class TestAFlow:
    """A family over several queues in one step."""

    def family(self, driver: QueueDriver, prefix: str, sequence: str = "1") -> tuple[QueueKeys, Command[Any]]:
        other = QueueKeys("frames", prefix, hash_tag=False)
        parent = {"id": "p", "queueKey": driver.keys.qualified}
        child = job("c", parent=parent, parent_key=driver.keys.job("p"))
        jobs = [(driver.keys, job("p", waits_for_children=True)), (other, child)]
        return other, add_flows([jobs], Ledger(driver.keys.toril("ledger:p1"), sequence))

    def test_is_added_whole(self, driver: QueueDriver, prefix: str) -> None:
        other, flow = self.family(driver, prefix)
        assert driver.run(flow) == [["p", "c"]]
        assert driver.run(read.get_state(driver.keys, "p")) == "waiting-children"
        assert driver.run(read.get_state(other, "c")) == "waiting"
        assert driver.run(read.get_children(driver.keys, "p")[1]) == [other.job("c")]

    def test_is_added_once(self, driver: QueueDriver, prefix: str) -> None:
        other, flow = self.family(driver, prefix)
        assert driver.run(flow) == driver.run(flow)
        assert driver.run(read.get_counts(other))["wait"] == 1
        assert flow.replay is Replay.SAFE

    def test_refuses_a_child_without_a_parent(self, driver: QueueDriver, prefix: str) -> None:
        orphan = job(
            "c", parent={"id": "x", "queueKey": driver.keys.qualified}, parent_key=driver.keys.job("x")
        )
        (refused,) = driver.run(
            add_flows([[(driver.keys, orphan)]], Ledger(driver.keys.toril("ledger:p1"), "1"))
        )
        assert isinstance(refused, ParentNotFound)

    def test_that_was_refused_stays_refused_when_its_call_is_repeated(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        """Whoever sent it has the first answer, or none yet: it must not become true behind his back."""
        driver.run(add_jobs(driver.keys, [job("first", waits_for_children=True)]))
        owned = {
            "parent": {"id": "first", "queueKey": driver.keys.qualified},
            "parent_key": driver.keys.job("first"),
        }
        driver.run(add_jobs(driver.keys, [job("c", **owned)]))
        parent = {"id": "p", "queueKey": driver.keys.qualified}
        flows = [
            [(driver.keys, job("alone"))],
            [
                (driver.keys, job("p", waits_for_children=True)),
                (driver.keys, job("c", parent=parent, parent_key=driver.keys.job("p"))),
            ],
        ]
        call = add_flows(flows, Ledger(driver.keys.toril("ledger:p1"), "1"))
        for _ in range(2):
            added, refused = driver.run(call)
            assert added == ["alone"]
            assert isinstance(refused, ParentCannotBeReplaced)
            assert refused.job_id == "c"
            assert driver.run(read.get_state(driver.keys, "p")) == "unknown"
            raw_command("DEL", driver.keys.job("first"))  # the obstacle is gone

    def test_says_again_which_jobs_existed(self, driver: QueueDriver, prefix: str) -> None:
        _, flow = self.family(driver, prefix)
        driver.run(flow)
        _, again = self.family(driver, prefix, "2")
        ((parent, child),) = driver.run(again)
        assert [[parent, child]] == driver.run(again)
        assert (parent.id, fields_of(child)[b"parentKey"]) == ("p", driver.keys.job("p").encode())


class TestALedger:
    """Names a call, so that a call whose reply was lost can be sent again."""

    def test_repeats_the_first_answer_and_adds_nothing(self, driver: QueueDriver) -> None:
        ledger = Ledger(driver.keys.toril("ledger:p1"), "7")
        call = add_jobs(driver.keys, [job(), job("a"), job(options={"delay": 5})], ledger)
        first = driver.run(call)
        assert driver.run(call) == first == ["1", "a", "3"]
        counts = driver.run(read.get_counts(driver.keys))
        assert (counts["wait"], counts["delayed"]) == (2, 1)

    def test_remembers_a_job_that_was_finished_and_removed_meanwhile(self, driver: QueueDriver) -> None:
        call = add_jobs(driver.keys, [job("a")], Ledger(driver.keys.toril("ledger:p1"), "7"))
        driver.run(call)
        assert driver.take() == ["a"]
        assert driver.finish("a", keep=0).ack_errors == [None]
        assert driver.run(call) == ["a"]
        assert driver.run(read.get_state(driver.keys, "a")) == "unknown"

    def test_remembers_refusals_and_errors_too(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        raw_command("HSET", driver.keys.delayed, "not", "a zset")
        parent = {"id": "nobody", "queueKey": driver.keys.qualified}
        orphan = job("a", parent=parent, parent_key=driver.keys.job("nobody"))
        broken = job("b", options={"delay": 5})
        call = add_jobs(driver.keys, [orphan, broken, job("c")], Ledger(driver.keys.toril("ledger:p1"), "7"))
        for _ in range(2):
            refused, failed, added = driver.run(call)
            assert isinstance(refused, ParentNotFound)
            assert isinstance(failed, ScriptFailed)
            assert added == "c"

    def test_lets_the_next_call_through(self, driver: QueueDriver) -> None:
        key = driver.keys.toril("ledger:p1")
        assert driver.run(add_jobs(driver.keys, [job()], Ledger(key, "7"))) == ["1"]
        assert driver.run(add_jobs(driver.keys, [job()], Ledger(key, "8"))) == ["2"]

    @pytest.mark.parametrize(("first", "second"), [("1", "12"), ("12", "1"), ("9" * 40, "9" * 41)])
    def test_knows_a_number_from_one_that_begins_alike(
        self, driver: QueueDriver, first: str, second: str
    ) -> None:
        key = driver.keys.toril("ledger:p1")
        assert driver.run(add_jobs(driver.keys, [job()], Ledger(key, first))) == ["1"]
        assert driver.run(add_jobs(driver.keys, [job()], Ledger(key, second))) == ["2"]
        assert driver.run(add_jobs(driver.keys, [job()], Ledger(key, second))) == ["2"]

    @pytest.mark.parametrize("ids", [["a"], ["a", "b"]])
    def test_it_holds_the_number_of_a_call_whose_jobs_were_all_added(
        self, driver: QueueDriver, raw_command: Callable[..., Any], ids: list[str]
    ) -> None:
        key = driver.keys.toril("ledger:p1")
        call = add_jobs(driver.keys, [job(one) for one in ids], Ledger(key, "7"))
        assert driver.run(call) == ids
        assert raw_command("GET", key) == b"7"
        for one in ids:
            driver.run(manage.remove(driver.keys, one))
        assert driver.run(call) == ids
        assert raw_command("LLEN", driver.keys.wait) == 0

    def test_a_repeated_call_for_one_job_that_existed_keeps_its_reply(
        self, driver: QueueDriver, raw_command: Callable[..., Any]
    ) -> None:
        key = driver.keys.toril("ledger:p1")
        driver.add("a")
        call = add_jobs(driver.keys, [job("a")], Ledger(key, "7"))
        first = driver.run(call)
        stored = raw_command("GET", key)
        assert driver.run(call) == first
        assert raw_command("GET", key) == stored
        assert 0 < raw_command("PTTL", key) <= LEDGER_MS

    def test_is_understood_by_flows(self, driver: QueueDriver) -> None:
        """A producer's batches and families may share its ledger."""
        key = driver.keys.toril("ledger:p1")
        assert driver.run(add_jobs(driver.keys, [job()], Ledger(key, "7"))) == ["1"]
        flow = add_flows([[(driver.keys, job("p"))]], Ledger(key, "8"))
        assert driver.run(flow) == driver.run(flow) == [["p"]]
        assert driver.run(add_jobs(driver.keys, [job()], Ledger(key, "9"))) == ["3"]

    def test_does_not_live_for_ever(self, driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
        key = driver.keys.toril("ledger:p1")
        driver.run(add_jobs(driver.keys, [job()], Ledger(key, "7")))
        assert 0 < raw_command("PTTL", key) <= 120_000

    def test_decides_whether_a_call_may_be_repeated(self, keys: QueueKeys) -> None:
        assert add_jobs(keys, [job("a")]).replay is Replay.NEVER
        assert add_jobs(keys, [job()], Ledger("k", "1")).replay is Replay.SAFE
        assert add_job(keys, job()).replay is Replay.NEVER
        assert add_job(keys, job("a")).replay is Replay.SAFE


@pytest.mark.parametrize("ledger", [False, True])
def test_a_full_server_refuses_the_whole_batch_and_adds_nothing(
    start_valkey: Callable[..., Server], keys: QueueKeys, ledger: bool
) -> None:
    server = start_valkey()
    with server.client() as client, BlockingTransport(server.url) as transport:
        client.config_set("maxmemory", "1")
        call = add_jobs(keys, [job("a"), job()], Ledger(keys.toril("ledger:p"), "1") if ledger else None)
        with pytest.raises(RedisOutOfMemory, match="raise maxmemory"):
            transport.run(call)
        client.config_set("maxmemory", "0")
        assert client.dbsize() == 0
        assert transport.run(call) == ["a", "2"]


def test_a_replica_refuses_the_whole_batch(start_valkey: Callable[..., Server], keys: QueueKeys) -> None:
    primary = start_valkey()
    replica = start_valkey(replicaof=f"127.0.0.1 {primary.port}")
    once = ConnectionPolicy(call_attempts=1)
    with (
        BlockingTransport(replica.url, policy=once) as transport,
        pytest.raises(RedisUnavailable, match="READONLY"),
    ):
        transport.run(add_jobs(keys, [job("a")]))
