"""Random histories of a queue, by the official scripts one at a time and by batches, compared after every step."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.integration.commands.official_reference import Side, run
from tests.interop.difference import differences, report
from tests.interop.keyspace import dump
from toril.commands import manage
from toril.commands.add import JobToAdd
from toril.commands.worker import FetchReply, Pickup, Settlement, finish_options, packed_fields
from toril.errors import ScriptFailed, ScriptRefused, TorilError
from toril.protocol.keys import QueueKeys

START_MS = 1_700_000_000_000
LOCK_MS = 30_000
# Real time passes during an example. All spans are multiples of this one, so rounding up undoes it.
GRAIN_MS = 10_000
TTL_TOLERANCE_MS = 5_000  # a loaded machine may need that long for one step on both sides

# More examples when a script changes: TORIL_EXAMPLES=1000 pytest tests/integration/commands
EXAMPLES = settings(
    max_examples=int(os.environ.get("TORIL_EXAMPLES", "25")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

_AGE = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left > 0 then
    left = math.ceil(left / ARGV[2]) * ARGV[2] - ARGV[1]
    if left > 0 then redis.call('PEXPIRE', key, left) else redis.call('DEL', key) end
  end
end
"""

PICKS = st.integers(0, 31)
RARELY = st.sampled_from([False, False, False, False, True])
SPANS = st.sampled_from([10_000, 20_000, 40_000, 120_000])
KEEPS = st.sampled_from(
    [
        {"count": -1},
        {"count": -1},
        {"count": 0},
        {"count": 1},
        {"count": 2},
        {"age": 10},
        {"age": 60, "count": 2},
    ]
)
LIMITS = st.sampled_from([None, None, None, {"max": 2, "duration": 20_000}])
PARENT_FLAGS = st.sampled_from([{}, {"fpof": True}, {"cpof": True}, {"idof": True}, {"rdof": True}])
DEDUPLICATIONS = st.sampled_from(
    [
        {"id": "d0"},
        {"id": "d1"},
        {"id": "d0", "ttl": 20_000},
        {"id": "d1", "ttl": 20_000, "extend": True},
        {"id": "d1", "replace": True},
        {"id": "d0", "ttl": 20_000, "extend": True, "replace": True},
    ]
)
OPTIONS = st.fixed_dictionaries(
    {"attempts": st.integers(1, 3)},
    optional={
        "priority": st.sampled_from([1, 2, 2**21]),
        "delay": SPANS,
        "lifo": st.just(True),
        "de": DEDUPLICATIONS,
        "backoff": st.just({"type": "fixed", "delay": 1000}),
        "tm": st.just("trace"),
    },
)
PLAIN = st.just({"attempts": 1})
IDS = st.sampled_from(["", "", "j0", "j1", "j2", "j3", "j4", "j5"])
JOBS = st.tuples(IDS, PLAIN | PLAIN | OPTIONS)
KINDS = st.sampled_from(["completed"] * 4 + ["failed"] * 2 + ["delayed", "retry", "wait"])
OUTCOMES = st.lists(
    st.tuples(PICKS, KINDS, RARELY, KEEPS, st.booleans()), max_size=5, unique_by=lambda drawn: drawn[0]
)
# Nothing that makes a script raise: upstream's leave such a job half moved, ours moves it to failed (other tests).
DAMAGES = st.sampled_from(["opts", "priority", "no data", "no hash", "deid", "parentKey"])


class RandomBatches(RuleBasedStateMachine):
    """One queue on two databases. A subclass names the sides, and whether operators set limits."""

    limits = True
    compared = 0  # replies of all examples
    keys: QueueKeys
    reference: Side
    tested: Side

    def __init__(self) -> None:
        super().__init__()
        self.now = START_MS
        self.held: dict[str, str] = {}
        self.serial = 0
        self.damaged: set[str] = set()
        self.on_both(lambda side: side.client.flushdb())

    # --- both sides -----------------------------------------------------------------------------------------

    def on_both(self, act: Callable[[Side], Any]) -> tuple[Any, Any]:
        return act(self.reference), act(self.tested)

    def same(self, act: Callable[[Side], Any], view: Callable[[Any], Any] = lambda answer: answer) -> Any:
        expected, given = self.on_both(act)
        type(self).compared += 1
        assert view(given) == view(expected), f"expected {view(expected)}, got {view(given)}"
        return given

    def managed(self, command: Any) -> None:
        """An official script on both sides, refusals included."""

        def act(side: Side) -> Any:
            try:
                return run(side.client, command)
            except ScriptRefused as refused:
                return type(refused)

        self.same(act)

    @invariant()
    def both_keyspaces_are_equal(self) -> None:
        expected, given = self.on_both(lambda side: dump(side.client, self.keys.prefix))
        found = differences(expected, given, ttl_tolerance=TTL_TOLERANCE_MS)
        assert not found, report(found, left="one by one", right="batched")

    # --- choosing -------------------------------------------------------------------------------------------

    def known(self) -> list[str]:
        base = self.keys.base
        keys: list[Any] = self.reference.client.keys(f"{base}*")
        found = (key.decode().removeprefix(base) for key in keys)
        jobs = {
            key
            for key in found
            if key[0] in "j0123456789p" and ":" not in key and key not in ("pc", "paused")
        }
        return sorted(jobs - {"prioritized"})

    def any_job(self, pick: int) -> str:
        candidates = [*self.known(), "nobody"]
        return candidates[pick % len(candidates)]

    def token(self) -> str:
        self.serial += 1
        return f"token-{self.serial}"

    # --- adding ---------------------------------------------------------------------------------------------

    @rule(drawn=st.lists(JOBS, min_size=1, max_size=6))
    def add(self, drawn: list[tuple[str, dict[str, Any]]]) -> None:
        jobs = [
            JobToAdd(name="job", data=b'{"n":1}', options=options, timestamp=self.now, id=job_id)
            for job_id, options in drawn
        ]
        self.same(lambda side: side.add(jobs), _answers)

    @rule(
        children=st.lists(OPTIONS | PLAIN, min_size=1, max_size=3), flags=PARENT_FLAGS, parent=OPTIONS | PLAIN
    )
    def add_flow(
        self, children: list[dict[str, Any]], flags: dict[str, bool], parent: dict[str, Any]
    ) -> None:
        self.serial += 1
        parent_id = f"p{self.serial}"
        jobs = [self._job(parent_id, parent, waits_for_children=True)]
        jobs += [
            self._job(
                f"jf{self.serial}c{number}",
                options,
                parent_key=self.keys.job(parent_id),
                parent={"id": parent_id, "queueKey": self.keys.qualified, **flags},
            )
            for number, options in enumerate(children)
        ]
        self.same(lambda side: side.add(jobs), _answers)

    @rule(pick=PICKS, options=PLAIN | OPTIONS)
    def add_child_of_any_job(self, pick: int, options: dict[str, Any]) -> None:
        parent = self.any_job(pick)
        self.serial += 1
        child = self._job(
            f"jx{self.serial}",  # never its own ancestor: upstream would look for the eldest for ever
            options,
            parent_key=self.keys.job(parent),
            parent={"id": parent, "queueKey": self.keys.qualified},
        )
        self.same(lambda side: side.add([child]), _answers)

    def _job(self, job_id: str, options: dict[str, Any], **more: Any) -> JobToAdd:
        return JobToAdd(name="job", data=b"{}", options=options, timestamp=self.now, id=job_id, **more)

    # --- working --------------------------------------------------------------------------------------------

    @rule(outcomes=OUTCOMES, take=st.integers(0, 4), limit=LIMITS, named=st.booleans(), metrics=st.booleans())
    def work(
        self, outcomes: list[Any], take: int, limit: dict[str, int] | None, named: bool, metrics: bool
    ) -> None:
        pickup = Pickup(token=self.token(), lock_ms=LOCK_MS, worker="w1" if named else None, limiter=limit)
        settlements = [
            self._settlement(drawn, pickup, job_id, 3 if metrics else None)
            for drawn, job_id in zip(outcomes, self._chosen(outcomes), strict=True)
        ]
        fetch_reply = self.same(lambda side: side.settle(settlements, take, pickup, self.now), _view_of_reply)
        for one, ack_error in zip(settlements, fetch_reply.ack_errors, strict=True):
            if ack_error is None:
                self.held.pop(one.job_id, None)
        self.held.update((job_id, pickup.token) for job_id, _ in fetch_reply.jobs)

    @rule(count=st.integers(1, 6), take=st.integers(0, 6), forget=RARELY, foreign=RARELY)
    def plain_work(self, count: int, take: int, forget: bool, foreign: bool) -> None:
        """What most calls are: jobs complete, and as many are taken."""
        if forget:
            self.forget_or_shorten_the_events(None)
        outcomes = [
            (number, "completed", foreign and number == 2, {"count": -1}, False) for number in range(count)
        ]
        self.work(outcomes, take, None, True, False)

    @rule(
        count=st.integers(2, 6), take=st.integers(0, 3), forget=RARELY, foreign=RARELY, fields=st.booleans()
    )
    def delaying_work(self, count: int, take: int, forget: bool, foreign: bool, fields: bool) -> None:
        """Retries, and jobs that go back for a while: several are delayed by one call, some for the same time."""
        if forget:
            self.forget_or_shorten_the_events(None)
        outcomes = [
            (number, "delayed", foreign and number == 2, {"count": -1}, fields) for number in range(count)
        ]
        self.work(outcomes, take, None, True, False)

    def _chosen(self, outcomes: list[Any]) -> list[str]:
        """A different job for each outcome: mostly held ones, rarely any."""
        held = sorted(self.held)
        chosen: list[str] = []
        for pick, _, foreign, *_ in outcomes:
            free = [job_id for job_id in held if job_id not in chosen]
            chosen.append(free[pick % len(free)] if free and not foreign else self.any_job(pick))
        return chosen

    def _settlement(self, drawn: Any, pickup: Pickup, job_id: str, metrics: int | None) -> Settlement:
        pick, kind, foreign, keep, with_fields = drawn
        token = "wrong" if foreign and pick % 2 else self.held.get(job_id, "wrong")
        fields = packed_fields({"failedReason": "why", "stacktrace": '["trace"]'}) if with_fields else b""
        match kind:
            case "completed" | "failed":
                options: Any = finish_options(
                    pickup=pickup,
                    token=token,
                    keep=keep,
                    attempts=pick % 3,
                    metrics_size=metrics,
                    parent_flags={},
                )
                value: Any = '{"ok":true}' if kind == "completed" else "why"
            case "delayed":
                value, options = (pick % 3) * 10_000, str(pick % 2)
            case "retry":
                value, options = ("RPUSH", "LPUSH")[pick % 2], ""
            case _:
                value, options, fields = "", "", b""
        return Settlement(job_id=job_id, kind=kind, token=token, value=value, options=options, fields=fields)

    @rule(foreign=RARELY)
    def extend(self, foreign: bool) -> None:
        held = sorted(self.held.items()) + ([("nobody", "wrong"), ("j0", "wrong")] if foreign else [])
        self.same(lambda side: side.extend(held, LOCK_MS))

    @precondition(lambda self: not self.damaged)
    @rule(max_stalled=st.integers(0, 2))
    def sweep(self, max_stalled: int) -> None:
        # A job whose options do not parse ends upstream's sweep half way; ours has a test of its own for that.
        self.same(lambda side: side.sweep(max_stalled=max_stalled, now_ms=self.now))

    @precondition(lambda self: self.held)
    @rule(mask=st.integers(1, 255))
    def lose_locks(self, mask: int) -> None:
        lost = [job_id for at, job_id in enumerate(sorted(self.held)) if mask >> (at % 8) & 1]
        self.on_both(lambda side: [side.client.delete(self.keys.lock(job_id)) for job_id in lost])

    @rule(span=SPANS)
    def advance(self, span: int) -> None:
        self.now += span
        self.on_both(lambda side: side.client.eval(_AGE, 0, span, GRAIN_MS))

    # --- what operators and accidents do --------------------------------------------------------------------

    @precondition(lambda self: self.limits)
    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        self.on_both(lambda side: side.pause(paused))

    @precondition(lambda self: self.limits)
    @rule(limit=st.sampled_from([None, 1, 2, 5]))
    def limit_concurrency(self, limit: int | None) -> None:
        self.managed(manage.set_global_concurrency(self.keys, limit))

    @precondition(lambda self: self.limits)
    @rule(limit=st.sampled_from([None, None, (1, 20_000), (3, 20_000)]))
    def limit_rate(self, limit: tuple[int, int] | None) -> None:
        self.managed(manage.set_global_rate_limit(self.keys, limit))

    @precondition(lambda self: self.limits)
    @rule()
    def hold_rate(self) -> None:
        self.managed(manage.start_rate_limit(self.keys, 20_000))

    @rule(pick=PICKS)
    def remove(self, pick: int) -> None:
        self.managed(manage.remove(self.keys, self.any_job(pick)))

    @rule(pick=PICKS)
    def promote(self, pick: int) -> None:
        self.managed(manage.promote(self.keys, self.any_job(pick)))

    @rule(delayed=st.booleans())
    def drain(self, delayed: bool) -> None:
        self.on_both(lambda side: side.drain(delayed))

    @rule()
    def pop_marker(self) -> None:
        self.on_both(lambda side: side.client.zpopmin(self.keys.marker))

    @rule(word=st.sampled_from(["0:0", "0:1700000000000"]), take=st.integers(1, 3))
    def pick_up_past_an_old_marker(self, word: str, take: int) -> None:
        # Only a pickup knows them well: upstream's finish gives up at such a marker though jobs wait behind it, and its
        # pause loses jobs when the queue is paused and `wait` is not empty. Ours does neither.
        if self.reference.client.hexists(self.keys.meta, "paused"):
            return
        self.on_both(lambda side: side.client.rpush(self.keys.wait, word))
        self.work([], take, None, False, False)
        self.on_both(lambda side: side.client.lrem(self.keys.wait, 0, word))

    @rule(length=st.sampled_from([None, 2]))
    def forget_or_shorten_the_events(self, length: int | None) -> None:
        if length is None:
            self.on_both(lambda side: side.client.hdel(self.keys.meta, "opts.maxLenEvents"))
        else:
            self.on_both(lambda side: side.client.hset(self.keys.meta, "opts.maxLenEvents", length))

    @rule(pick=PICKS, what=DAMAGES)
    def raw_command(self, pick: int, what: str) -> None:
        job_id = self.any_job(pick)
        if job_id == "nobody":
            return
        self.on_both(lambda side: _spoil(side, self.keys.job(job_id), what))
        if what == "opts":
            self.damaged.add(job_id)


def _spoil(side: Side, job: str, what: str) -> None:
    match what:
        case "no data":
            side.client.hdel(job, "data")
        case "no hash":
            side.client.delete(job)
        case "priority" | "deid":
            side.client.hset(job, what, "strange")
        case "parentKey":
            side.client.hset(job, what, "nowhere:nobody")
        case _:
            side.client.hset(job, what, "{not json")


def _answers(added: list[Any]) -> list[Any]:
    return [_ack_error(one) if isinstance(one, TorilError) else one for one in added]


def _ack_error(error: TorilError | None) -> Any:
    if isinstance(error, ScriptFailed):
        return "failed"  # The text names lines and digests of the script.
    return None if error is None else (type(error), str(error))


def _view_of_reply(fetch_reply: FetchReply) -> Any:
    ack_errors = [_ack_error(one) for one in fetch_reply.ack_errors]
    limited = round(fetch_reply.limited_ms / GRAIN_MS)
    # Fields of a hash have no order; of a field that comes twice, the later counts.
    jobs = [(job_id, dict(zip(flat[::2], flat[1::2], strict=True))) for job_id, flat in fetch_reply.jobs]
    return ack_errors, jobs, limited, fetch_reply.next_at_ms, bool(fetch_reply.fetch_error)
