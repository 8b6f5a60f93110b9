"""The seven contracts of the wire: for the same steps, toril leaves every key, type, value and TTL as Node does.

Each test leads both sides through the contract and compares the whole keyspace after every single step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.keyspace import Entry
from tests.interop.lockstep import Lockstep
from tests.interop.steps import Outcome, Step
from tests.servers import Server

ERROR = {"name": "Error", "message": "no route to host", "stack": "Error: no route to host\n    at send"}
FATAL = {**ERROR, "name": "UnrecoverableError"}


@pytest.fixture(scope="module", params=["valkey", "redis7"])
def _two_servers(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """The contracts hold on both kinds of server."""
    make = Server.redis7 if request.param == "redis7" else Server.valkey
    with make() as left, make() as right:
        yield left, right


@pytest.fixture
def queue(lockstep: Lockstep) -> QueueSteps:
    lockstep.begin()
    return QueueSteps(lockstep)


class QueueSteps:
    """Steps with the arguments that most tests do not care about filled in."""

    def __init__(self, lockstep: Lockstep) -> None:
        self.lockstep = lockstep

    def do(self, op: str, **args: Any) -> Outcome:
        return self.lockstep.do(Step(op, args))

    def add(self, job_id: str, data: Any = None, **opts: Any) -> None:
        self.do("add", name="render", data=data or {}, opts={"attempts": 1, "jobId": job_id, **opts})

    def pick_up(self, token: str = "t") -> Any:
        taken = self.do("pick_up", token=token, worker="worker-1").value
        return taken and taken["id"]

    def complete(
        self, job_id: str, value: Any = None, *, fetch_next: bool = False, token: str = "t"
    ) -> Outcome:
        return self.do(
            "complete", id=job_id, value=value, token=token, fetch_next=fetch_next, worker="worker-1"
        )

    def fail(self, job_id: str, error: dict[str, str] = ERROR, *, fetch_next: bool = False) -> Outcome:
        return self.do("fail", id=job_id, error=error, token="t", fetch_next=fetch_next, worker="worker-1")

    def ids(self, state: str) -> list[str]:
        entry = self.lockstep.keyspace.get(f"bull:q:{state}", Entry(kind="list", content=[]))
        assert isinstance(entry.content, list)
        return [row if isinstance(row, str) else row[0] for row in entry.content]  # type: ignore[index]

    def fields(self, job_id: str) -> dict[str, str]:
        content = self.lockstep.keyspace[f"bull:q:{job_id}"].content
        assert isinstance(content, dict)
        return content


# Contract 1: submission


def test_1_a_job_is_submitted_as_node_submits_it(queue: QueueSteps) -> None:
    queue.add("a", {"videoId": "550e", "scenes": [{"n": 1, "text": "ünï 🎬 \u0000"}]})
    assert queue.ids("wait") == ["a"]


def test_1_options_are_stored_in_nodes_spelling(queue: QueueSteps) -> None:
    queue.add(
        "a",
        attempts=3,
        backoff={"type": "exponential", "delay": 1000},
        removeOnComplete={"age": 3600, "count": 100},
        removeOnFail=5,
        keepLogs=20,
        stackTraceLimit=2,
        lifo=True,
    )
    assert '"kl":20' in queue.fields("a")["opts"]


def test_1_priority_decides_the_score(queue: QueueSteps) -> None:
    for job_id, priority in (("low", 2**21), ("first", 1), ("second", 1)):
        queue.add(job_id, priority=priority)
    assert queue.ids("prioritized") == ["first", "second", "low"]


def test_1_delayed_jobs_carry_their_time_and_a_sequence(queue: QueueSteps) -> None:
    for job_id, delay in (("later", 20_000), ("soon", 10_000), ("soon-too", 10_000)):
        queue.add(job_id, delay=delay)
    assert queue.ids("delayed") == ["soon", "soon-too", "later"]


def test_1_an_id_that_exists_is_not_added_again(queue: QueueSteps) -> None:
    queue.add("a", {"n": 1})
    queue.add("a", {"n": 2})
    assert queue.ids("wait") == ["a"]


def test_1_the_counter_gives_ids_to_jobs_without_one(queue: QueueSteps) -> None:
    queue.do("add_bulk", jobs=[{"name": "n", "data": {}, "opts": {"attempts": 1}} for _ in range(3)])
    assert queue.ids("wait") == ["3", "2", "1"]


@pytest.mark.parametrize("kind", [{}, {"ttl": 10_000}, {"ttl": 10_000, "extend": True, "replace": True}])
def test_1_deduplication_keeps_one_job(queue: QueueSteps, kind: dict[str, Any]) -> None:
    for job_id in ("a", "b"):
        queue.add(job_id, delay=20_000, deduplication={"id": "same", **kind})
    kept = "b" if "replace" in kind else "a"
    assert queue.ids("delayed") == [kept]
    queue.do("advance", ms=20_000)
    queue.add("c", deduplication={"id": "same", **kind})
    assert ("bull:q:c" in queue.lockstep.keyspace) == ("ttl" in kind)  # its time is over


# Contract 2: pickup


def test_2_pickup_locks_the_oldest_job_and_names_the_worker(queue: QueueSteps) -> None:
    queue.add("a")
    queue.add("b")
    assert queue.pick_up("token-of-a") == "a"
    assert queue.fields("a")["pb"] == "worker-1"
    assert queue.lockstep.keyspace["bull:q:a:lock"].content == "token-of-a"


def test_2_what_waits_goes_before_what_has_a_priority(queue: QueueSteps) -> None:
    queue.add("ranked", priority=1)
    queue.add("plain")
    queue.add("front", lifo=True)
    assert [queue.pick_up() for _ in range(4)] == ["front", "plain", "ranked", None]


def test_2_a_due_job_is_promoted_by_the_next_pickup(queue: QueueSteps) -> None:
    queue.add("a", delay=10_000)
    assert queue.pick_up() is None
    queue.do("advance", ms=10_000)
    assert queue.pick_up() == "a"


def test_2_nothing_is_taken_from_a_paused_or_full_queue(queue: QueueSteps) -> None:
    queue.add("a")
    queue.do("pause")
    assert queue.pick_up() is None
    queue.do("resume")
    queue.do("set_concurrency", concurrency=1)
    queue.add("b")
    assert [queue.pick_up(), queue.pick_up()] == ["a", None]


# Contract 3: heartbeat


def test_3_a_lock_is_extended_by_its_owner_only(queue: QueueSteps) -> None:
    queue.add("a")
    queue.pick_up()
    queue.do("advance", ms=20_000)
    assert queue.do("extend_lock", id="a", token="t", duration=30_000).value is True
    assert queue.do("extend_lock", id="a", token="no-token", duration=30_000).value is False
    assert queue.do("extend_locks", ids=["a", "b"], tokens=["t", "t"], duration=30_000).value == ["b"]


# Contract 4: completion


@pytest.mark.parametrize("value", [None, 0, "", [], {"url": "https://…", "seconds": 15.5}], ids=str)
def test_4_completion_stores_the_result(queue: QueueSteps, value: Any) -> None:
    queue.add("a")
    queue.pick_up()
    queue.complete("a", value)
    assert queue.ids("completed") == ["a"]


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (True, []),
        (1, ["c"]),
        ({"count": 2}, ["b", "c"]),
        ({"age": 15}, ["b", "c"]),
        ({"age": 15, "count": 1}, ["c"]),
    ],
    ids=str,
)
def test_4_old_results_go_as_asked(queue: QueueSteps, keep: Any, left: list[str]) -> None:
    for job_id in ("a", "b", "c"):
        queue.add(job_id, removeOnComplete=keep)
        queue.pick_up()
        queue.complete(job_id)
        queue.do("advance", ms=10_000)
    assert sorted(queue.ids("completed")) == left


def test_4_completing_fetches_the_next_job_in_the_same_call(queue: QueueSteps) -> None:
    queue.add("a")
    queue.add("b")
    queue.pick_up()
    assert queue.complete("a", fetch_next=True).value["id"] == "b"
    assert queue.complete("b", fetch_next=True).value is None


def test_4_only_the_owner_of_the_lock_can_complete(queue: QueueSteps) -> None:
    queue.add("a")
    queue.pick_up()
    assert queue.complete("a", token="no-token").refused == "-6"
    queue.do("lose_lock", id="a")
    assert queue.complete("a").refused == "-2"
    assert queue.complete("nobody").refused == "-1"


# Contract 5: failure


def test_5_a_job_without_attempts_left_fails_for_good(queue: QueueSteps) -> None:
    queue.add("a")
    queue.pick_up()
    queue.fail("a")
    assert queue.fields("a")["failedReason"] == ERROR["message"]
    assert queue.ids("failed") == ["a"]


def test_5_without_backoff_the_next_attempt_follows_at_once(queue: QueueSteps) -> None:
    queue.add("a", attempts=2)
    queue.pick_up()
    queue.fail("a")
    assert queue.pick_up() == "a"
    queue.fail("a")
    assert queue.fields("a")["atm"] == "2"


@pytest.mark.parametrize("kind", ["fixed", "exponential"])
def test_5_with_backoff_the_next_attempt_is_delayed(queue: QueueSteps, kind: str) -> None:
    queue.add("a", attempts=4, backoff={"type": kind, "delay": 10_000})
    for _ in range(4):
        assert queue.pick_up() == "a"
        queue.fail("a")
        queue.do("advance", ms=120_000)
    assert queue.ids("failed") == ["a"]


def test_5_an_unrecoverable_error_ends_all_attempts(queue: QueueSteps) -> None:
    queue.add("a", attempts=5)
    queue.pick_up()
    queue.fail("a", FATAL)
    assert queue.ids("failed") == ["a"]


def test_5_stack_traces_are_kept_up_to_their_limit(queue: QueueSteps) -> None:
    queue.add("a", attempts=3, stackTraceLimit=2)
    for number in range(3):
        queue.pick_up()
        queue.fail("a", {**ERROR, "stack": f"trace {number}"})
    assert queue.fields("a")["stacktrace"] == '["trace 1","trace 2"]'


def test_5_a_failed_job_is_retried_by_hand(queue: QueueSteps) -> None:
    queue.add("a")
    queue.pick_up()
    queue.fail("a")
    queue.do("retry", id="a", state="failed")
    assert queue.ids("wait") == ["a"]


# Contract 6: stalled jobs


def test_6_a_job_whose_lock_ran_out_is_taken_back_by_the_second_sweep(queue: QueueSteps) -> None:
    for job_id in ("a", "b", "c"):
        queue.add(job_id)
    for token in ("t", "u"):
        queue.pick_up(token)
    queue.do("lose_lock", id="a")
    assert queue.do("sweep_stalled").value == []
    queue.do("extend_locks", ids=["b"], tokens=["u"], duration=30_000)
    assert queue.do("sweep_stalled").value == []  # guarded by stalled-check
    queue.do("advance", ms=20_000)
    queue.do("extend_locks", ids=["b"], tokens=["u"], duration=30_000)
    queue.do("advance", ms=20_000)
    assert queue.do("sweep_stalled").value == ["a"]
    assert queue.pick_up() == "a"


def test_6_a_job_that_stalls_too_often_is_failed_by_its_next_worker(queue: QueueSteps) -> None:
    queue.add("a")
    for _ in range(2):
        queue.pick_up()
        queue.do("sweep_stalled")
        queue.do("advance", ms=40_000)
        assert queue.do("sweep_stalled").value == ["a"]
        queue.do("advance", ms=40_000)
    taken = queue.do("pick_up", token="t", worker="worker-1").value
    queue.fail("a", {**FATAL, "message": taken["deferred_failure"]})
    assert queue.fields("a")["failedReason"] == "job stalled more than allowable limit"


# Contract 7: progress


@pytest.mark.parametrize("progress", [0, 50, {"done": 3, "of": 7}], ids=str)
def test_7_progress_is_stored_and_published(queue: QueueSteps, progress: Any) -> None:
    queue.add("a")
    queue.pick_up()
    queue.do("update_progress", id="a", progress=progress)
    assert queue.do("update_progress", id="nobody", progress=progress).refused == "-1"


def test_7_log_lines_are_kept_in_order_up_to_their_number(queue: QueueSteps) -> None:
    queue.add("a")
    for number in range(4):
        queue.do("log", id="a", line=f"line {number}", keep=3)
    assert queue.ids("a:logs") == ["line 1", "line 2", "line 3"]
