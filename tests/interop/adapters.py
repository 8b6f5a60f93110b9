"""The two sides of a comparison: whoever can do every operation on one queue of one server.

`NodeSide` is the reference. `PlantedBug` spoils a side on purpose, to show that the comparison would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import redis

from tests.interop.keyspace import Keyspace, dump
from tests.interop.reference import Bench, Reference, Refused
from tests.interop.steps import Fetched, Outcome, Step
from tests.servers import Server

QUEUE = "q"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a worker of this queue was told besides its lock: a rate limit, and for how many minutes it counts."""

    limiter: Mapping[str, int] | None = None  # {"max": jobs, "duration": ms}
    metrics: int | None = None

    def for_node(self) -> dict[str, Any]:
        metrics = {"metrics": {"maxDataPoints": self.metrics}} if self.metrics else {}
        return {**({"limiter": self.limiter} if self.limiter else {}), **metrics}


NO_RULES = Rules()
STRICT = Rules(limiter={"max": 2, "duration": 10_000}, metrics=3)


class Side(Protocol):
    """One queue on one server, driven step by step with a given clock."""

    name: str
    client: redis.Redis

    def set_clock(self, milliseconds: int) -> None: ...

    def reset(self) -> None:
        """An empty server with the queue just opened."""
        ...

    def close(self) -> None: ...

    def can(self, op: str, /) -> bool: ...

    def do(self, step: Step) -> Outcome: ...


def keyspace_of(side: Side) -> Keyspace:
    return dump(side.client)


class NodeSide:
    """BullMQ 5.62.0 on its own server."""

    def __init__(
        self, reference: Reference, server: Server, name: str = "node", rules: Rules = NO_RULES
    ) -> None:
        self.name = name
        self.client = server.client()
        self._reference = reference
        self._bench: Bench = reference.bench(QUEUE, url=server.url, worker=rules.for_node())

    def set_clock(self, milliseconds: int) -> None:
        self._reference.set_clock(milliseconds)

    def reset(self) -> None:
        self.client.flushall()
        self._bench.call("reset")

    def close(self) -> None:
        self._bench.close()
        self.client.close()

    def can(self, _op: str) -> bool:
        return True

    def do(self, step: Step) -> Outcome:
        if step.op == "exchange":
            return Outcome(self._exchange(**step.args))
        try:
            value = self._bench.call(step.op, **step.args)
        except Refused as refusal:
            return Outcome(refused=_code(refusal))
        return _SHAPES.get(step.op, _as_is)(value)

    def _exchange(self, *, settle: Sequence[Mapping[str, Any]], take: int, token: str, worker: str) -> Any:
        """What toril does in one call, one official script after the other: ends first, each fetching while there
        is capacity, then pickups until nothing is left."""
        refused: list[str | None] = []
        taken: list[Any] = []
        open_gate = take > 0
        for end in settle:
            step = Step(end["op"], {**end["args"], "token": token, "worker": worker, "fetch_next": open_gate})
            retried = end["op"] == "fail" and not self._is_final(end["args"])
            outcome = self.do(step)
            refused.append(outcome.refused)
            if outcome.refused is None and open_gate and not retried:
                taken += [outcome.value] if outcome.value else []
                open_gate = bool(outcome.value) and len(taken) < take
        while open_gate:
            outcome = self.do(Step("pick_up", {"token": token, "worker": worker}))
            taken += [outcome.value] if outcome.value else []
            open_gate = bool(outcome.value) and len(taken) < take
        return {"refused": refused, "taken": taken}

    def _is_final(self, args: Mapping[str, Any]) -> bool:
        """Whether this failure ends the job; a retry fetches nothing and says nothing about what waits."""
        job = self._bench.call("job", id=args["id"])
        fatal = args["error"]["name"] == "UnrecoverableError"
        return job is None or fatal or job["attempts_made"] + 1 >= job["opts"].get("attempts", 0)


def _code(refusal: Refused) -> str:
    return str(refusal.code) if isinstance(refusal.code, int) else "no"


def _as_is(value: Any) -> Outcome:
    return Outcome(value)


def _taken(view: Mapping[str, Any] | None) -> Outcome:
    if view is None:
        return Outcome(None)
    names = ("id", "attempts_started", "attempts_made", "deferred_failure")
    return Outcome(Fetched(**{name: view[name] for name in names}).as_value())


def _unordered(ids: list[str]) -> Outcome:
    return Outcome(sorted(ids))


def _nothing(_: Any) -> Outcome:
    return Outcome(None)


def _removed(count: int) -> Outcome:
    return Outcome(None) if count else Outcome(refused="no")


def parents_of(flow: Mapping[str, Any]) -> dict[str, Any]:
    """A flow without the ids of its leaves: of a deduplicated child Node answers the id that it was not added under."""
    children = [parents_of(child) for child in flow["children"]]
    return {"id": flow["id"] if children else None, "queue": flow["queue"], "children": children}


# What Node answers and toril cannot or need not answer alike is brought to one shape.
_SHAPES: Mapping[str, Callable[[Any], Outcome]] = {
    "pick_up": _taken,
    "complete": _taken,
    "fail": _taken,
    "give_back": _nothing,
    "set_concurrency": _nothing,
    "set_rate_limit": _nothing,
    "clean": _unordered,
    "sweep_stalled": _unordered,
    "extend_locks": _unordered,
    "remove": _removed,
    "add_flow": lambda flow: Outcome(parents_of(flow)),
    "extend_lock": lambda kept: Outcome(bool(kept)),
    "remove_deduplication": lambda count: Outcome(bool(count)),
    "jobs": lambda views: Outcome([view["id"] for view in views]),
    "dependencies": lambda found: Outcome(
        {kind: sorted(found.get(kind) or ()) for kind in ("processed", "unprocessed", "failed", "ignored")}
    ),
}

Spoil = Callable[[redis.Redis, Step], None]


class PlantedBug:
    """A side that does everything right and then spoils one thing."""

    def __init__(self, side: Side, spoil: Spoil) -> None:
        self.name = f"{side.name} with a planted bug"
        self.client = side.client
        self._side = side
        self._spoil = spoil

    def set_clock(self, milliseconds: int) -> None:
        self._side.set_clock(milliseconds)

    def reset(self) -> None:
        self._side.reset()

    def close(self) -> None:
        self._side.close()

    def can(self, op: str) -> bool:
        return self._side.can(op)

    def do(self, step: Step) -> Outcome:
        outcome = self._side.do(step)
        self._spoil(self.client, step)
        return outcome
