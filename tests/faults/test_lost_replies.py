"""Calls whose reply is lost: what must not run twice does not, and what may is asked again until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.faults.proxy import FAULTS, Kind, Proxy
from tests.integration.transport.transport_adapters import ADAPTERS, TransportAdapter
from tests.interop.difference import differences, report
from tests.interop.keyspace import dump
from tests.servers import Server
from toril.commands import add, cleaning, locks, manage, read, schedulers, worker
from toril.commands.add import JobToAdd, Ledger
from toril.commands.command import Command, Replay, plain
from toril.commands.worker import Pickup, Settlement, finish_options
from toril.errors import ReplyLost, ScriptRefused
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport, ConnectionPolicy

NOW = 1_700_000_000_000
POLICY = ConnectionPolicy(
    command_timeout=0.25, connect_timeout=2, reconnect_delay=0.005, max_reconnect_delay=0.02, call_attempts=5
)
PICKUP = Pickup(token="t1", lock_ms=30_000)
DONE = finish_options(pickup=PICKUP, token="t1", keep={"count": -1}, attempts=1)


def job(job_id: str, **options: Any) -> JobToAdd:
    return JobToAdd(name="draw", data=b"{}", options=options, timestamp=NOW, id=job_id)


def _plain(job_id: str) -> dict[str, Any]:
    return {"name": "draw", "data": b"{}", "options": {}, "timestamp": NOW, "id": job_id}


def _parent(keys: QueueKeys, job_id: str) -> dict[str, str]:
    return {"id": job_id, "queueKey": keys.qualified}


TICK = schedulers.SchedulerToAdd(
    id="tick", name="tick", data=b"{}", options={}, repeat={"every": 60_000}, next_ms=NOW + 60_000, now_ms=NOW
)
BROKEN = schedulers.BrokenScheduler(
    id="tick", job_id="held", reason="odd", since_ms=NOW, data=b"{}", opts=b"{}"
)
Build = Callable[[QueueKeys], Command[Any]]

# Every command that changes something, and one read of each shape. `held` is being worked on under t1, `ready` waits,
# `late` is delayed, `over` has failed, `done` is completed, `child` has the parent `parent`.
COMMANDS: dict[str, Build] = {
    "add_job": lambda keys: add.add_job(keys, job("new")),
    "add_job, counted": lambda keys: add.add_job(keys, job("")),
    "add_jobs": lambda keys: add.add_jobs(keys, [job("new"), job("")]),
    "add_jobs, ledger": lambda keys: add.add_jobs(
        keys, [job("new"), job("")], Ledger(keys.toril("ledger:p"), "1")
    ),
    "settle": lambda keys: worker.settle(
        keys,
        [Settlement(job_id="held", kind="completed", token="t1", value="1", options=DONE)],
        capacity=1,
        pickup=PICKUP,
        now_ms=NOW,
    ),
    "take_one": lambda keys: worker.fetch_one(keys, pickup=PICKUP, now_ms=NOW),
    "wait_for_marker": lambda keys: worker.wait_for_marker(keys, 0.05),
    "set_marker": worker.set_marker,
    "move_to_waiting_children": lambda keys: worker.move_to_waiting_children(
        keys, "held", token="t1", now_ms=NOW
    ),
    "extend_locks": lambda keys: locks.extend_locks(keys, [("held", "t1")], lock_ms=60_000),
    "extend_lock": lambda keys: locks.extend_lock(keys, "held", "t1", lock_ms=60_000),
    "release_lock": lambda keys: locks.release_lock(keys, "held", "t1", lock_ms=60_000),
    "sweep_begin": lambda keys: locks.sweep_begin(keys, now_ms=NOW, interval_ms=30_000),
    "sweep_step": lambda keys: locks.sweep_step(keys, max_stalled=1, suspects=10),
    "update_data": lambda keys: manage.update_data(keys, "ready", b"{}"),
    "update_progress": lambda keys: manage.update_progress(keys, "held", b"1"),
    "add_log": lambda keys: manage.add_log(keys, "held", "line", keep=10),
    "change_delay": lambda keys: manage.change_delay(keys, "late", delay_ms=5, now_ms=NOW),
    "change_priority": lambda keys: manage.change_priority(keys, "ready", priority=3),
    "promote": lambda keys: manage.promote(keys, "late"),
    "reprocess": lambda keys: manage.reprocess(keys, "over"),
    "move_jobs_to_wait": lambda keys: manage.move_jobs_to_wait(keys, "failed", count=10),
    "remove": lambda keys: manage.remove(keys, "ready"),
    "pause": manage.pause,
    "resume": manage.resume,
    "drain": lambda keys: cleaning.drain(keys, most=1, delayed=True),
    "clean": lambda keys: cleaning.clean(keys, "completed", before_ms=NOW + 1, limit=10),
    "obliterate": lambda keys: manage.obliterate(keys, count=10, force=True),
    "remove_deduplication_key": lambda keys: manage.remove_deduplication_key(keys, "same"),
    "remove_child_dependency": lambda keys: manage.remove_child_dependency(keys, "child", keys.job("parent")),
    "remove_unprocessed_children": lambda keys: manage.remove_unprocessed_children(keys, "parent"),
    "set_global_concurrency": lambda keys: manage.set_global_concurrency(keys, 5),
    "start_rate_limit": lambda keys: manage.start_rate_limit(keys, 1000),
    "trim_events": lambda keys: manage.trim_events(keys, 5),
    "add_flows": lambda keys: add.add_flows(
        [
            [
                (keys, JobToAdd(**_plain("p2"), waits_for_children=True)),
                (keys, JobToAdd(**_plain("c2"), parent_key=keys.job("p2"), parent=_parent(keys, "p2"))),
            ]
        ],
        Ledger(keys.toril("ledger:p"), "1"),
    ),
    "add_scheduler": lambda keys: schedulers.add_scheduler(keys, TICK),
    "advance_scheduler": lambda keys: schedulers.advance_scheduler(
        keys, "tick", job_id="held", data=b"{}", options={}, next_ms=NOW + 60_000, now_ms=NOW
    ),
    "record_broken": lambda keys: schedulers.record_broken(keys, BROKEN),
    "clear_broken": lambda keys: schedulers.clear_broken(keys, "tick"),
    "broken_schedulers": schedulers.broken_schedulers,
    "resume_scheduler": lambda keys: schedulers.resume_scheduler(
        keys,
        schedulers.advance_scheduler(
            keys, "tick", job_id="held", data=b"{}", options={}, next_ms=NOW + 60_000, now_ms=NOW
        ),
    ),
    "remove_scheduler": lambda keys: schedulers.remove_scheduler(keys, "tick"),
    "clear_logs": lambda keys: manage.clear_logs(keys, "held"),
    "remove_rate_limit": manage.remove_rate_limit,
    "request_cancel": lambda keys: manage.request_cancel(keys, "held", "token-1", "enough", 60_000),
    "withdraw_cancel": lambda keys: manage.withdraw_cancel(keys, "held"),
    "get_counts": read.get_counts,
    "get_job": lambda keys: read.get_job(keys, "ready"),
    "get_state": lambda keys: read.get_state(keys, "ready"),
    "is_finished": lambda keys: read.is_finished(keys, "done"),
    "read_events": lambda keys: read.read_events([keys], ["0"], block_ms=None, count=5),
}
# Commands that take or give something away: a second run would take or give another.
NEVER_TWICE = {
    "add_job, counted",
    "add_jobs",
    "settle",
    "take_one",
    "move_to_waiting_children",
    "release_lock",
    "sweep_begin",
    "sweep_step",
}


@pytest.fixture
def keys(prefix: str) -> QueueKeys:
    return QueueKeys("paint", prefix, hash_tag=False)


@pytest.fixture
def queue(valkey: Server, keys: QueueKeys) -> Iterator[BlockingTransport]:
    """A queue with a job in every state, and a store that knows no faults."""
    with BlockingTransport(valkey.url) as transport:
        transport.run(add.add_jobs(keys, [job("held"), job("done"), job("over"), job("ready")]))
        taken = transport.run(worker.settle(keys, [], capacity=3, pickup=PICKUP, now_ms=NOW))
        assert len(taken.jobs) == 3
        ends: list[Settlement] = [
            Settlement(job_id="done", kind="completed", token="t1", value="1", options=DONE),
            Settlement(job_id="over", kind="failed", token="t1", value="why", options=DONE),
        ]
        assert transport.run(worker.settle(keys, ends, capacity=0, pickup=PICKUP, now_ms=NOW)).ack_errors == [
            None,
            None,
        ]
        parent = JobToAdd(
            name="p", data=b"{}", options={}, timestamp=NOW, id="parent", waits_for_children=True
        )
        child = JobToAdd(
            name="c", data=b"{}", options={}, timestamp=NOW, id="child", parent_key=keys.job("parent"),
            parent={"id": "parent", "queueKey": keys.qualified},
        )  # fmt: skip
        transport.run(add.add_jobs(keys, [job("late", delay=60_000), parent, child]))
        yield transport


@pytest.fixture
def proxy(valkey: Server) -> Iterator[Proxy]:
    with Proxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture(params=["async", "blocking"])
async def transport(
    request: pytest.FixtureRequest, valkey: Server, queue: BlockingTransport, proxy: Proxy
) -> AsyncIterator[TransportAdapter]:
    adapter = ADAPTERS[request.param](proxy.url, POLICY, None)
    yield adapter
    await adapter.close()


def test_the_table_says_of_every_command_whether_it_may_run_twice(keys: QueueKeys) -> None:
    never = {name for name, build in COMMANDS.items() if build(keys).replay is Replay.NEVER}
    assert never == NEVER_TWICE


# A popped marker costs a short wait, which is said where it is defined.
LEAVES_A_TRACE = {"wait_for_marker"}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NEVER_TWICE | LEAVES_A_TRACE])
def test_a_command_that_may_run_twice_leaves_and_returns_what_it_did_the_first_time(
    valkey: Server, keys: QueueKeys, queue: BlockingTransport, name: str
) -> None:
    command = COMMANDS[name](keys)
    if name == "obliterate":
        queue.run(manage.pause(keys))
    if name in ("advance_scheduler", "remove_scheduler"):
        queue.run(schedulers.add_scheduler(keys, TICK))
    with valkey.client() as client:
        value = queue.run(command)
        once = dump(client, keys.prefix)
        assert queue.run(command) == value
        twice = dump(client, keys.prefix)
    remembered = bool(command.keys) and ":toril:reply:" in command.keys[-1]
    for keyspace in () if remembered else (once, twice):
        keyspace.pop(keys.events, None)  # That somebody asked again may be told.
        keyspace.pop(keys.id, None)  # Upstream counts a job that exists already.
    assert not differences(once, twice), report(differences(once, twice), left="once", right="twice")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", COMMANDS)
async def test_a_lost_reply_makes_nothing_run_that_must_not(
    keys: QueueKeys,
    proxy: Proxy,
    queue: BlockingTransport,
    transport: TransportAdapter,
    name: str,
    fault: Kind,
) -> None:
    command = known(queue, COMMANDS[name](keys))
    if name == "obliterate":
        queue.run(manage.pause(keys))
    mark = keys.base.encode()
    await transport.connect()
    armed = proxy.arm(fault, mark)
    reached = 0 if fault == "cut before" else 1
    if command.replay is Replay.NEVER:
        with pytest.raises(ReplyLost, match="was lost"):
            await transport.run(command)
        assert proxy.forwarded(mark) <= reached
    else:
        await answered(transport, command)
        assert proxy.forwarded(mark) >= reached + 1
    assert armed.struck.is_set()


def known(queue: BlockingTransport, command: Command[Any]) -> Command[Any]:
    """The same command, its script loaded: NOSCRIPT would be one more call."""
    if command.script is not None:
        queue.run(plain(bytes, "SCRIPT", "LOAD", command.script.text))
    return command


async def answered(transport: TransportAdapter, command: Command[Any]) -> None:
    """A value, or a refusal by the state that the first run left."""
    try:
        await transport.run(command)
    except ScriptRefused as refused:
        pytest.fail(f"a repeated {command.name} was refused: {refused}")


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_pipeline_repeats_only_what_it_may(
    keys: QueueKeys, proxy: Proxy, queue: BlockingTransport, transport: TransportAdapter, fault: Kind
) -> None:
    take = known(queue, worker.fetch_one(keys, pickup=PICKUP, now_ms=NOW))
    counts = known(queue, read.get_counts(keys))
    await transport.connect()
    proxy.arm(fault, keys.base.encode())
    taken, found = await transport.run_many([take, counts])
    assert (
        isinstance(taken, ReplyLost) or fault == "cut within"
    )  # Half of two replies may be the first of them.
    assert found["active"] == (1 if fault == "cut before" else 2)


async def test_a_slow_reply_within_the_time_out_is_no_fault(
    keys: QueueKeys, proxy: Proxy, transport: TransportAdapter
) -> None:
    await transport.connect()
    proxy.arm("delay", keys.base.encode(), seconds=0.1)
    reply = await transport.run(worker.fetch_one(keys, pickup=PICKUP, now_ms=NOW))
    assert [job_id for job_id, _ in reply.jobs] == ["ready"]


async def test_a_reply_that_comes_after_the_time_out_reaches_nobody(
    keys: QueueKeys, proxy: Proxy, queue: BlockingTransport, transport: TransportAdapter
) -> None:
    take = known(queue, worker.fetch_one(keys, pickup=PICKUP, now_ms=NOW))
    await transport.connect()
    late = proxy.arm("delay", keys.base.encode(), seconds=0.5)
    with pytest.raises(ReplyLost):
        await transport.run(take)
    states = [await transport.run(read.get_state(keys, one)) for one in ("ready", "done", "over", "late")]
    assert states == ["active", "completed", "failed", "delayed"]
    await asyncio.to_thread(late.struck.wait, 5)
    assert await transport.run(read.get_state(keys, "done")) == "completed"


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_producers_jobs_are_never_doubled(
    keys: QueueKeys, proxy: Proxy, queue: BlockingTransport, transport: TransportAdapter, fault: Kind
) -> None:
    await transport.connect()
    for serial in range(3):
        proxy.arm(fault, keys.base.encode())
        call = add.add_jobs(keys, [job(""), job(f"n{serial}")], Ledger(keys.toril("ledger:p"), str(serial)))
        assert (await transport.run(call))[1] == f"n{serial}"
    assert queue.run(read.get_counts(keys))["wait"] == 2 + 3 * 2


@pytest.mark.parametrize("fault", ["cut after", "cut within"])
async def test_a_job_that_was_finished_and_removed_meanwhile_is_not_added_again(
    keys: QueueKeys, proxy: Proxy, queue: BlockingTransport, transport: TransportAdapter, fault: Kind
) -> None:
    adding = known(queue, add.add_jobs(keys, [job("once")], Ledger(keys.toril("ledger:p"), "1")))
    await transport.connect()
    queue.run(cleaning.drain(keys, most=10))
    armed = proxy.arm(fault, keys.base.encode())
    proxy.shut_the_door()
    call = asyncio.create_task(transport.run(adding))
    await asyncio.to_thread(armed.struck.wait, 5)
    finish_and_remove(queue, keys, "once")
    proxy.open_the_door()
    assert await call == ["once"]
    assert queue.run(read.get_state(keys, "once")) == "unknown"
    assert queue.run(read.get_counts(keys))["wait"] == 0


def finish_and_remove(transport: BlockingTransport, keys: QueueKeys, job_id: str) -> None:
    taken = transport.run(worker.settle(keys, [], capacity=1, pickup=PICKUP, now_ms=NOW))
    assert [one for one, _ in taken.jobs] == [job_id]
    gone = finish_options(pickup=PICKUP, token="t1", keep={"count": 0}, attempts=1)
    done = Settlement(job_id=job_id, kind="completed", token="t1", value="1", options=gone)
    assert transport.run(worker.settle(keys, [done], capacity=0, pickup=PICKUP, now_ms=NOW)).ack_errors == [
        None
    ]


async def test_a_finish_whose_reply_was_lost_can_be_checked(
    keys: QueueKeys, proxy: Proxy, queue: BlockingTransport, transport: TransportAdapter
) -> None:
    """What a worker does then: it asks what became of the job, and settles no second time."""
    done = Settlement(job_id="held", kind="completed", token="t1", value="1", options=DONE)
    finish = known(queue, worker.settle(keys, [done], capacity=0, pickup=PICKUP, now_ms=NOW))
    await transport.connect()
    proxy.arm("cut after", keys.base.encode())
    with pytest.raises(ReplyLost):
        await transport.run(finish)
    assert (await transport.run(read.is_finished(keys, "held"))).state == "completed"
    (ack_error,) = (await transport.run(finish)).ack_errors
    assert isinstance(ack_error, ScriptRefused)


WORDS = {
    "LOADING": b"-LOADING Redis is loading the dataset in memory\r\n",
    "BUSY": b"-BUSY Redis is busy running a script.\r\n",
    "MASTERDOWN": b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
    "CLUSTERDOWN": b"-CLUSTERDOWN The cluster is down\r\n",
    "TRYAGAIN": b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
    "NOREPLICAS": b"-NOREPLICAS Not enough good replicas to write.\r\n",
    "MISCONF": b"-MISCONF Errors writing to the AOF file: No space left on device\r\n",
    "READONLY": b"-READONLY You can't write against a read only replica.\r\n",
    "READONLY in a script": b"-ERR Error running script: @user_script: 7: -READONLY You can't write\r\n",
    "NOSCRIPT": b"-NOSCRIPT No matching script. Please use EVAL.\r\n",
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", ["take_one", "settle", "add_jobs", "get_counts", "set_marker"])
async def test_a_call_that_the_server_did_not_run_is_sent_again(
    keys: QueueKeys, proxy: Proxy, queue: BlockingTransport, transport: TransportAdapter, name: str, word: str
) -> None:
    """Also those that must not run twice: the server says that it has not run them."""
    await transport.connect()
    mark = keys.base.encode()
    for _ in range(1 if word == "NOSCRIPT" else 3):
        proxy.arm("answer", mark, reply=WORDS[word])
    await transport.run(known(queue, COMMANDS[name](keys)))
    assert proxy.forwarded(mark) == 1


@pytest.mark.parametrize("word", WORDS)
async def test_a_pipeline_that_the_server_did_not_run_is_sent_again(
    keys: QueueKeys, proxy: Proxy, queue: BlockingTransport, transport: TransportAdapter, word: str
) -> None:
    await transport.connect()
    mark = keys.base.encode()
    commands = [known(queue, COMMANDS[name](keys)) for name in ("take_one", "get_counts", "settle")]
    proxy.arm("answer", mark, reply=WORDS[word] * len(commands))
    taken, counts, reply = await transport.run_many(commands)
    assert [job_id for job_id, _ in taken.jobs] == ["ready"]
    assert counts["active"] == 2
    assert reply.ack_errors == [None]
    # Texts of scripts make more than one packet of a pipeline.
    assert proxy.occurrences(b"\r\nEVAL") == len(commands)  # EVALSHA, or EVAL with the text


async def test_a_reply_that_is_no_reply_ends_the_connection(
    keys: QueueKeys, proxy: Proxy, transport: TransportAdapter
) -> None:
    await transport.connect()
    proxy.arm("answer", keys.base.encode(), reply=b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ReplyLost):
        await transport.run(worker.fetch_one(keys, pickup=PICKUP, now_ms=NOW))
    assert (await transport.run(read.get_counts(keys)))["active"] == 1
