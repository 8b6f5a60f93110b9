"""Every command sends the keys and words that Node's BullMQ 5.62.0 sends for the same call.

Node's own `Scripts` class is run with a client that writes down what it is given. Packed words are compared by what
they say: msgpack has several spellings of one value.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from tests.integration.commands.official_reference import OneByOne, settle_one
from toril.commands import add, cleaning, locks, manage, read, schedulers, worker
from toril.commands.add import JobToAdd
from toril.commands.command import Command
from toril.commands.worker import Pickup, Settlement, finish_options, packed_fields
from toril.protocol.keys import QueueKeys

NODE = Path(__file__).parents[2] / "interop/node"
NOW = 1_700_000_000_123
KEYS = QueueKeys("paint", "bull", hash_tag=False)
PICKUP = Pickup(token="t1", lock_ms=30_000, worker="w1", limiter={"max": 5, "duration": 1000})

RECORDER = """
const { Scripts } = require('./node_modules/bullmq/dist/cjs/classes/scripts.js');
Date.now = () => %(now)d;
const names = ['', 'active', 'wait', 'waiting-children', 'paused', 'id', 'delayed', 'prioritized', 'stalled-check',
  'completed', 'failed', 'stalled', 'repeat', 'limiter', 'meta', 'events', 'pc', 'marker', 'de'];
const toKey = (name) => 'bull:paint:' + name;
const calls = [];
const word = (value) => {
  if (value === undefined || value === null) return '';
  if (Buffer.isBuffer(value)) return { packed: value.toString('base64') };
  return String(value);
};
const client = new Proxy({}, { get: (_, name) => (words) => {
  calls.push([name.split(':')[0], words.map(word)]);
  return 0;
} });
// A promise that resolves with the recorder itself would ask it for `then`.
const queue = {
  keys: Object.fromEntries(names.map((name) => [name, toKey(name)])), toKey, closing: undefined, redisVersion: '7.0.0',
  client: { then: (resolve) => resolve({ client }) },
  opts: { name: 'w1', lockDuration: 30000, limiter: { max: 5, duration: 1000 }, maxStalledCount: 1,
          stalledInterval: 30000, metrics: { maxDataPoints: 60 } },
};
Object.defineProperty(queue, 'client', { get: () => ({ then: (resolve) => resolve(wrapped) }) });
const wrapped = new Proxy({}, { get: (_, name) => (name === 'then' ? undefined : client[name]) });
const scripts = new Scripts(queue);
(async () => {
  for (const [method, given] of JSON.parse(process.argv[1])) {
    const job = given.find((one) => one && one.isJob);
    if (method === 'addJob') await scripts.addJob(wrapped, ...given);
    else if (method === 'moveToFinished') {
      const kind = given[4] === 'completed' ? 'moveToCompletedArgs' : 'moveToFailedArgs';
      const words = kind === 'moveToCompletedArgs'
        ? scripts[kind](given[0], given[1], given[2], given[3], given[5])
        : scripts[kind](given[0], given[1], given[2], given[3], given[5], given[6]);
      await scripts.moveToFinished(given[0].id, words);
    } else if (method === 'moveToActive') await scripts.moveToActive(wrapped, ...given);
    else await scripts[method](...given).catch((error) => { if (error.code !== 0) throw error; });
  }
  process.stdout.write(JSON.stringify(calls));
})();
"""

DONE = finish_options(pickup=PICKUP, token="t1", keep={"count": 3}, attempts=2, metrics_size=60)
KEPT = finish_options(
    pickup=PICKUP,
    token="t1",
    keep={"count": -1},
    attempts=2,
    metrics_size=60,
    parent_flags={"fpof": True, "rdof": False},
)
FIELDS = packed_fields({"failedReason": "why", "stacktrace": "[]"})


def _job(options: dict[str, Any], **more: Any) -> JobToAdd:
    return JobToAdd(name="draw", data=b'{"n":1}', options=options, timestamp=NOW, **more)


TICK = schedulers.SchedulerToAdd(
    id="tick",
    name="draw",
    data=b'{"n":1}',
    options={"attempts": 2},
    repeat={"every": 60_000, "limit": 5},
    next_ms=NOW + 60_000,
    now_ms=NOW,
)
NODE_JOB = {"name": "draw", "data": '{"n":1}', "timestamp": NOW}
PARENT = {"id": "p1", "queueKey": "bull:paint"}
WITH_PARENT = {"parent": PARENT, "parentKey": "bull:paint:p1"}

# What it is → (Node's method and arguments, our command).
CASES: dict[str, tuple[str, list[Any], Command[Any]]] = {
    "standard": (
        "addJob",
        [NODE_JOB, {"attempts": 3}, "j1"],
        add.add_job(KEYS, _job({"attempts": 3}, id="j1")),
    ),
    "standard, counted id": ("addJob", [NODE_JOB, {}, ""], add.add_job(KEYS, _job({}))),
    "delayed": ("addJob", [NODE_JOB, {"delay": 5}, "j1"], add.add_job(KEYS, _job({"delay": 5}, id="j1"))),
    "prioritized": (
        "addJob",
        [NODE_JOB, {"priority": 7}, "j1"],
        add.add_job(KEYS, _job({"priority": 7}, id="j1")),
    ),
    "delayed and prioritized": (
        "addJob",
        [NODE_JOB, {"priority": 7, "delay": 5}, "j1"],
        add.add_job(KEYS, _job({"priority": 7, "delay": 5}, id="j1")),
    ),
    "parent": (
        "addJob",
        [NODE_JOB, {"delay": 5}, "p1", {"addToWaitingChildren": True}],
        add.add_job(KEYS, _job({"delay": 5}, id="p1", waits_for_children=True)),
    ),
    "child": (
        "addJob",
        [{**NODE_JOB, **WITH_PARENT}, {}, "j1", {"parentDependenciesKey": "bull:paint:p1:dependencies"}],
        add.add_job(KEYS, _job({}, id="j1", parent=PARENT, parent_key="bull:paint:p1")),
    ),
    "deduplicated": (
        "addJob",
        [{**NODE_JOB, "deduplicationId": "d1"}, {"de": {"id": "d1", "ttl": 5}}, "j1"],
        add.add_job(KEYS, _job({"de": {"id": "d1", "ttl": 5}}, id="j1")),
    ),
    "scheduled": (
        "addJob",
        [{**NODE_JOB, "repeatJobKey": "every-5"}, {}, "repeat:every-5:1"],
        add.add_job(KEYS, _job({}, id="repeat:every-5:1", repeat_key="every-5")),
    ),
    "pause": ("pause", [True], manage.pause(KEYS)),
    "resume": ("pause", [False], manage.resume(KEYS)),
    "remove": ("remove", ["j1", True], manage.remove(KEYS, "j1")),
    "remove, children stay": ("remove", ["j1", False], manage.remove(KEYS, "j1", children=False)),
    "remove unprocessed children": (
        "removeUnprocessedChildren",
        ["j1"],
        manage.remove_unprocessed_children(KEYS, "j1"),
    ),
    "extend lock": ("extendLock", ["j1", "t1", 30_000], locks.extend_lock(KEYS, "j1", "t1", lock_ms=30_000)),
    "update data": ("updateData", [{"id": "j1"}, {"n": 1}], manage.update_data(KEYS, "j1", b'{"n":1}')),
    "update progress": ("updateProgress", ["j1", 42], manage.update_progress(KEYS, "j1", b"42")),
    "log": ("addLog", ["j1", "line", 1000], manage.add_log(KEYS, "j1", "line", keep=1000)),
    "log, all kept": ("addLog", ["j1", "line"], manage.add_log(KEYS, "j1", "line", keep=None)),
    # The reference of our own drain.
    "drain": ("drain", [False], cleaning.official_drain(KEYS)),
    "drain delayed": ("drain", [True], cleaning.official_drain(KEYS, delayed=True)),
    "detach child": (
        "removeChildDependency",
        ["j1", "bull:paint:p1"],
        manage.remove_child_dependency(KEYS, "j1", "bull:paint:p1"),
    ),
    "ranges": (
        "getRanges",
        [["waiting", "active"], 0, 9, True],
        read.get_ranges(KEYS, ["waiting", "active"], start=0, end=9, ascending=True),
    ),
    "counts": ("getCounts", [["waiting", *read.COUNTED_STATES[1:]]], read.get_counts(KEYS)),
    "counts per priority": ("getCountsPerPriority", [[0, 5]], read.get_counts_per_priority(KEYS, [0, 5])),
    "is finished": ("isFinished", ["j1", True], read.is_finished(KEYS, "j1")),
    "state": ("getState", ["j1"], read.get_state(KEYS, "j1")),
    "change delay": ("changeDelay", ["j1", 500], manage.change_delay(KEYS, "j1", delay_ms=500, now_ms=NOW)),
    "change priority": (
        "changePriority",
        ["j1", 5, True],
        manage.change_priority(KEYS, "j1", priority=5, lifo=True),
    ),
    "wait for children": (
        "moveToWaitingChildren",
        ["p1", "t1", {}],
        worker.move_to_waiting_children(KEYS, "p1", token="t1", now_ms=NOW),
    ),
    "rate limit": ("getRateLimitTtl", [], read.get_rate_limit_ttl(KEYS)),
    "rate limit of a worker": ("getRateLimitTtl", [5], read.get_rate_limit_ttl(KEYS, 5)),
    "clean": (
        "cleanJobsInSet",
        ["completed", NOW, 100],
        cleaning.clean(KEYS, "completed", before_ms=NOW, limit=100),
    ),
    "retry all": (
        "retryJobs",
        ["failed", 1000, NOW],
        manage.move_jobs_to_wait(KEYS, "failed", count=1000, until_ms=NOW),
    ),
    "promote all": ("promoteJobs", [1000], manage.move_jobs_to_wait(KEYS, "delayed", count=1000)),
    "retry one": (
        "reprocessJob",
        [{"id": "j1", "opts": {"lifo": True}}, "failed"],
        manage.reprocess(KEYS, "j1", lifo=True),
    ),
    "run again": (
        "reprocessJob",
        [{"id": "j1", "opts": {}}, "completed"],
        manage.reprocess(KEYS, "j1", state="completed"),
    ),
    "metrics": ("getMetrics", ["failed", 0, -1], read.get_metrics(KEYS, "failed")),
    "take": ("moveToActive", ["t1", "w1"], worker.fetch_one(KEYS, pickup=PICKUP, now_ms=NOW)),
    "promote": ("promote", ["j1"], manage.promote(KEYS, "j1")),
    "sweep": (
        "moveStalledJobsToWait",
        [],
        locks.official_sweep(KEYS, max_stalled=1, now_ms=NOW, interval_ms=30_000),
    ),
    "obliterate": ("obliterate", [{"count": 1000}], manage.obliterate(KEYS, count=1000)),
    "obliterate by force": (
        "obliterate",
        [{"count": 1000, "force": True}],
        manage.obliterate(KEYS, count=1000, force=True),
    ),
    "add scheduler": (
        "addJobScheduler",
        [
            "tick",
            NOW + 60_000,
            '{"n":1}',
            {"attempts": 2},
            {"name": "draw", "every": 60_000, "limit": 5},
            {
                "attempts": 2,
                "repeat": {"every": 60_000, "limit": 5, "count": 1},
                "timestamp": NOW,
                "repeatJobKey": "tick",
                "prevMillis": NOW + 60_000,
                "delay": 60_000,
            },
            None,
        ],
        schedulers.add_scheduler(KEYS, TICK),
    ),
    "advance scheduler": (
        "updateJobSchedulerNextMillis",
        ["tick", NOW + 60_000, '{"n":1}', {"attempts": 2}, "j1"],
        schedulers.advance_scheduler(
            KEYS,
            "tick",
            job_id="j1",
            data=b'{"n":1}',
            options={"attempts": 2},
            next_ms=NOW + 60_000,
            now_ms=NOW,
        ),
    ),
    "remove scheduler": ("removeJobScheduler", ["tick"], schedulers.remove_scheduler(KEYS, "tick")),
    "is maxed": ("isMaxed", [], read.is_maxed(KEYS)),
    # The reference of our batches: what settle.lua is compared with must be what Node sends.
    "complete": (
        "moveToFinished",
        [{"id": "j1", "opts": {"attempts": 2}}, '"done"', 3, "t1", "completed", True],
        settle_one(
            KEYS,
            Settlement(job_id="j1", kind="completed", token="t1", value='"done"', options=DONE),
            now_ms=NOW,
            fetch=True,
        ),
    ),
    "fail": (
        "moveToFinished",
        [
            {"id": "j1", "opts": {"attempts": 2, "failParentOnFailure": True}},
            "why",
            False,
            "t1",
            "failed",
            False,
            {"failedReason": "why", "stacktrace": "[]"},
        ],
        settle_one(
            KEYS,
            Settlement(job_id="j1", kind="failed", token="t1", value="why", options=KEPT, fields=FIELDS),
            now_ms=NOW,
        ),
    ),
    "postpone": (
        "moveToDelayed",
        ["j1", NOW, 500, "t1", {"skipAttempt": True}],
        settle_one(
            KEYS, Settlement(job_id="j1", kind="delayed", token="t1", value=500, options="1"), now_ms=NOW
        ),
    ),
    "retry later": (
        "moveToDelayed",
        ["j1", NOW, 500, "t1", {"fieldsToUpdate": {"failedReason": "why", "stacktrace": "[]"}}],
        settle_one(
            KEYS,
            Settlement(job_id="j1", kind="delayed", token="t1", value=500, options="0", fields=FIELDS),
            now_ms=NOW,
        ),
    ),
    "retry now": (
        "retryJob",
        ["j1", True, "t1", {"fieldsToUpdate": {"failedReason": "why", "stacktrace": "[]"}}],
        settle_one(
            KEYS, Settlement(job_id="j1", kind="retry", token="t1", value="RPUSH", fields=FIELDS), now_ms=NOW
        ),
    ),
    "give back": (
        "moveJobFromActiveToWait",
        ["j1", "t1"],
        settle_one(KEYS, Settlement(job_id="j1", kind="wait", token="t1"), now_ms=NOW),
    ),
}


@pytest.fixture(scope="module")
def as_node() -> dict[str, tuple[str, list[Any]]]:
    calls = json.dumps([[method, given] for method, given, _ in CASES.values()])
    command = ["node", "-e", RECORDER % {"now": NOW}, calls]
    done = subprocess.run(command, cwd=NODE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


WRAPPED = {
    "toril.add_scheduler": "addJobScheduler",
    "toril.clean_set": "cleanJobsInSet",
    "toril.move_jobs_to_wait": "moveJobsToWait",
    "toril.remove_job": "removeJob",
    "toril.retry_finished": "reprocessJob",
}


# Words of our own behind those of the official script.
OWN_WORDS = {"toril.clean_set": 1, "toril.move_jobs_to_wait": 1, "toril.retry_finished": 2}


@pytest.mark.parametrize("case", CASES)
def test_a_command_sends_the_words_of_node(as_node: dict[str, Any], case: str) -> None:
    script, words = as_node[case]
    command = CASES[case][2]
    # Ours may wrap the official body; its words are the same.
    assert WRAPPED.get(command.name, command.name.removeprefix("toril.")) == script
    assert [_said(word) for word in _to_the_body(command)] == [_said(word) for word in words]


def _to_the_body(command: Command[Any]) -> tuple[Any, ...]:
    """Keys and words without our own, and those by which a repeated call is recognised."""
    if ":toril:reply:" not in command.keys[-1]:
        return (*command.keys, *command.args)
    keys = [key for key in command.keys if ":toril:" not in key]
    return (*keys, *command.args[: -3 - OWN_WORDS.get(command.name, 0)])


def test_heartbeats_of_the_reference_are_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Command[Any]] = []

    def record(_: object, command: Command[Any]) -> list[str]:
        sent.append(command)
        return []

    monkeypatch.setattr("tests.integration.commands.official_reference.run", record)
    OneByOne(redis.Redis(), KEYS).extend([("j1", "t1"), ("j2", "t2")], 30_000)
    words = [*sent[0].keys, *sent[0].args]
    assert [_said(word) for word in words] == [
        "bull:paint:stalled",
        "bull:paint:",
        ["t1", "t2"],
        ["j1", "j2"],
        "30000",
    ]


def _said(word: Any) -> Any:
    """What a word means to the script: text, or the packed value without fields that are nil."""
    if isinstance(word, dict):
        return _without_nil(msgspec.msgpack.decode(base64.b64decode(word["packed"])))
    if isinstance(word, bytes):
        return _packed_or_text(word)
    return str(word)


def _packed_or_text(word: bytes) -> Any:
    try:
        return word.decode("ascii")
    except UnicodeDecodeError:
        return _without_nil(msgspec.msgpack.decode(word))


def _without_nil(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without_nil(item) for name, item in value.items() if item is not None}
        case list():
            return [_without_nil(item) for item in value]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value
