"""The base of random histories of a queue: choosing jobs, and which jobs are active. Subclasses add the rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition

from tests.interop.adapters import QUEUE
from tests.interop.history_strategies import JOBS
from tests.interop.lockstep import Lockstep
from tests.interop.steps import Outcome, Step

F = TypeVar("F", bound=Callable[..., Any])

PICK = st.integers(0, 31)
SOMETIMES = st.sampled_from([False, False, False, True])
WORKERS = st.sampled_from(["w1", "w2"])
FINISHED = ("completed", "failed")
CLEANED = ("completed", "failed", "wait", "delayed", "prioritized", "active", "paused")
LOCK_MS = 30_000
FETCH_LOOP_TOKEN = "token-of-the-fetch-loop"


def has(op: str, *, jobs: int = 0) -> Callable[[F], F]:
    """The rule is used only when both sides know the operation, and it has something to act on."""
    return precondition(lambda self: self.lockstep.can(op) and len(self.ids()) >= jobs)


class RandomHistory(RuleBasedStateMachine):
    """One queue from its opening on. `lockstep` is given by a subclass."""

    lockstep: Lockstep

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, str] = {}
        self.tokens = 0
        self.flows = 0

    @initialize(jobs=st.lists(JOBS, max_size=6))
    def open(self, jobs: list[dict[str, Any]]) -> None:
        self.lockstep.begin()
        if jobs:
            self.do("add_bulk", jobs=jobs)

    def do(self, op: str, **args: Any) -> Outcome:
        return self.lockstep.do(Step(op, args))

    def ids(self, *states: str) -> list[str]:
        """Ids in these states; all known jobs when no state is given."""
        if not states:
            return sorted(_jobs(self.lockstep))
        found: list[str] = []
        for state in states:
            entry = self.lockstep.keyspace.get(f"bull:{QUEUE}:{state}")
            rows: Any = [] if entry is None else entry.content
            found += [row if isinstance(row, str) else row[0] for row in rows]
        return found

    def next_runs_are_last(self, state: str) -> bool:
        """Whether the next runs of schedulers stand behind all other jobs of a list."""
        entry = self.lockstep.keyspace.get(f"bull:{QUEUE}:repeat")
        rows: Any = [] if entry is None else entry.content
        runs = {f"repeat:{name}:{due}" for name, due in rows}
        listed = [job_id in runs for job_id in self.ids(state)]
        return listed == sorted(listed)

    def target(self, pick: int, anywhere: bool, *states: str) -> str:
        """A job in a fitting state if there is one, and now and then any job, or one that does not exist."""
        fitting = [] if anywhere else self.ids(*states)
        candidates = fitting or [*self.ids(), "nobody"]
        return candidates[pick % len(candidates)]

    def token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    def take(self, outcome: Outcome, token: str) -> None:
        if outcome.refused is None and outcome.value is not None:
            self.held[outcome.value["id"]] = token

    def holder(self, pick: int, wrong_token: bool) -> tuple[str, str]:
        """A job to settle and the token to do it with; a wrong token is not the lock's."""
        if not self.held:
            return self.target(pick, wrong_token, "active"), "no-token"
        job_id = sorted(self.held)[pick % len(self.held)]
        return job_id, "no-token" if wrong_token else self.held[job_id]

    def may_settle(self, job_id: str, token: str) -> bool:
        """Whether the lock is this token's. Without it toril may retake the lock, where Node refuses the end."""
        lock = self.lockstep.keyspace.get(f"bull:{QUEUE}:{job_id}:lock")
        return lock is not None and lock.content == token and job_id in self.ids("active")

    def may_finish(self, job_id: str, token: str) -> bool:
        job = f"bull:{QUEUE}:{job_id}"
        children = any(f"{job}:{part}" in self.lockstep.keyspace for part in ("dependencies", "unsuccessful"))
        return self.may_settle(job_id, token) and not children

    def children_of(self, job_id: str) -> list[str]:
        """Ids of children that have not ended."""
        entry = self.lockstep.keyspace.get(f"bull:{QUEUE}:{job_id}:dependencies")
        keys: Any = [] if entry is None else entry.content
        return [key.removeprefix(f"bull:{QUEUE}:") for key in keys]

    def field(self, job_id: str, name: str) -> str | None:
        """A field of a job's hash, if there is such a job and field."""
        entry = self.lockstep.keyspace.get(f"bull:{QUEUE}:{job_id}")
        return entry.content.get(name) if entry is not None and isinstance(entry.content, dict) else None

    def children(self) -> list[str]:
        """Ids of jobs that have a parent."""
        return [job_id for job_id in self.ids() if self.field(job_id, "parentKey") is not None]

    def settle(self, op: str, pick: int, wrong_token: bool, **args: Any) -> None:
        job_id, token = self.holder(pick, wrong_token)
        # A refused finish fetches nothing in Node; toril's fetch loop fetches regardless.
        if "fetch_next" in args and not self.may_finish(job_id, token):
            args["fetch_next"] = False
        outcome = self.do(op, id=job_id, token=token, **args)
        if outcome.refused is None:
            self.held.pop(job_id, None)
        self.take(outcome, token)


def _jobs(lockstep: Lockstep) -> list[str]:
    """Every job that has a hash; the queue's own hashes have no `name` and `timestamp`."""
    base = f"bull:{QUEUE}:"
    return [
        key.removeprefix(base)
        for key, entry in lockstep.keyspace.items()
        if key.startswith(base) and isinstance(entry.content, dict) and "timestamp" in entry.content
    ]
