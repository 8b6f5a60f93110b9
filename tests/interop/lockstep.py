"""Runs the same steps on two implementations and compares them after every step.

Guarantee: time and chance are the same on both. The clock is a number moved by `advance`, which also ages every
key that has a time to live; locks are lost and markers popped on both servers alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.interop.adapters import QUEUE, Side, keyspace_of
from tests.interop.difference import Difference, differences, report
from tests.interop.keyspace import Keyspace
from tests.interop.steps import Outcome, Step

START_MS = 1_700_000_000_000
# Real time passes while a sequence runs. All times to live are multiples of this span, so rounding up undoes it.
GRAIN_MS = 10_000

_AGE = """
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left > 0 then
    left = math.ceil(left / ARGV[2]) * ARGV[2] - ARGV[1]
    if left > 0 then redis.call('PEXPIRE', key, left) else redis.call('DEL', key) end
  end
end
"""


class Differs(AssertionError):
    """The two sides are no longer alike; the message lists all steps up to there."""


@dataclass
class Tally:
    """How much was compared."""

    sequences: int = 0
    steps: int = 0
    by_operation: dict[str, int] = field(default_factory=dict)

    def count(self, op: str) -> None:
        self.steps += 1
        self.by_operation[op] = self.by_operation.get(op, 0) + 1


def unchanged(keyspace: Keyspace) -> Keyspace:
    """Compares the whole keyspace."""
    return keyspace


class Lockstep:
    """A reference side and the side under test; `same_tokens=False` when the tested side makes its own locks.

    `comparable` leaves out of a keyspace what differs between the generations of BullMQ.
    """

    def __init__(
        self,
        reference: Side,
        tested: Side,
        *,
        same_tokens: bool = True,
        comparable: Callable[[Keyspace], Keyspace] = unchanged,
    ) -> None:
        self._same_tokens = same_tokens
        self._comparable = comparable
        self.reference = reference
        self.tested = tested
        self.tally = Tally()
        self.steps: list[Step] = []
        self.now = START_MS
        self.keyspace: Keyspace = {}

    def begin(self) -> None:
        """A new sequence on two empty servers."""
        self.tally.sequences += 1
        self.steps = []
        self._set_clock(START_MS)
        self.reference.reset()
        self.tested.reset()
        self._compare(None)

    def can(self, op: str) -> bool:
        return op in _WORLD or (self.reference.can(op) and self.tested.can(op))

    def do(self, step: Step) -> Outcome:
        """Perform the step on both sides; raises `Differs` unless answers and keyspaces are alike."""
        self.steps.append(step)
        self.tally.count(step.op)
        if step.op in _WORLD:
            _WORLD[step.op](self, step)
            outcome = Outcome()
        else:
            outcome = self._answer(step)
        if step.op in _TRACED:
            self._mask_last_trace(step.args["id"])
        self._compare(step)
        return outcome

    def replay(self, steps: Iterable[Step]) -> None:
        self.begin()
        for step in steps:
            self.do(step)

    def _answer(self, step: Step) -> Outcome:
        expected, given = self.reference.do(step), self.tested.do(step)
        if expected != given:
            raise Differs(
                f"answers differ: {self.reference.name} {expected}, {self.tested.name} {given}\n{self._way()}"
            )
        return expected

    def _compare(self, step: Step | None) -> None:
        left, right = (self._comparable(keyspace_of(side)) for side in (self.reference, self.tested))
        tokens = self._same_tokens
        found = differences(left if tokens else _masked(left), right if tokens else _masked(right))
        if found:
            raise Differs(self._complain(step, found))
        self.keyspace = left

    def _complain(self, step: Step | None, found: list[Difference]) -> str:
        after = f"after {step}" if step else "after opening the queue"
        return f"{after}: {report(found, left=self.reference.name, right=self.tested.name)}\n{self._way()}"

    def _way(self) -> str:
        return "the way there:\n" + "\n".join(
            f"  {number}. {step}" for number, step in enumerate(self.steps, 1)
        )

    def _mask_last_trace(self, job_id: str) -> None:
        """The stack of an error that a worker raised itself differs by language; that there is one counts."""
        for side in (self.reference, self.tested):
            key = f"bull:{QUEUE}:{job_id}"
            raw: Any = side.client.hget(key, "stacktrace")
            if traces := json.loads(raw or "[]"):
                side.client.hset(key, "stacktrace", json.dumps([*traces[:-1], "a trace"]))

    def _set_clock(self, milliseconds: int) -> None:
        self.now = milliseconds
        self.reference.set_clock(milliseconds)
        self.tested.set_clock(milliseconds)

    def advance(self, step: Step) -> None:
        span = step.args["ms"]
        self._set_clock(self.now + span)
        for side in (self.reference, self.tested):
            side.client.eval(_AGE, 0, span, GRAIN_MS)

    def lose_lock(self, step: Step) -> None:
        for side in (self.reference, self.tested):
            side.client.delete(f"bull:{QUEUE}:{step.args['id']}:lock")

    def wake(self, _: Step) -> None:
        for side in (self.reference, self.tested):
            side.client.zpopmin(f"bull:{QUEUE}:marker")


_TRACED = {"run_handler"}
_WORLD = {"advance": Lockstep.advance, "lose_lock": Lockstep.lose_lock, "wake": Lockstep.wake}


def _masked(keyspace: Keyspace) -> Keyspace:
    return {
        key: replace(entry, content="a token") if key.endswith(":lock") else entry
        for key, entry in keyspace.items()
    }
