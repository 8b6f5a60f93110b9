"""`python -m tests.interop`: every comparison with Node at full length, and a table at the end.

The exit status is 1 if anything differs. A sequence that differs is kept as a file, ready to become a regression test.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.interop import scenarios
from tests.interop.adapters import NO_RULES, STRICT, NodeSide, PlantedBug, Rules, Side, Spoil
from tests.interop.application_adapter import ApplicationSide
from tests.interop.bull_board_routes import walk_the_board
from tests.interop.command_adapter import CommandSide
from tests.interop.deduplication_rules import DeduplicationHistory
from tests.interop.generations import comparable, compare_generations
from tests.interop.keyspace import Keyspace
from tests.interop.lockstep import Differs, Lockstep, unchanged
from tests.interop.machine import QueueHistory, run_random_histories
from tests.interop.planted_bugs import BUGS
from tests.interop.random_history import RandomHistory
from tests.interop.reference import SIX, Reference
from tests.interop.scenarios import Ground, Result
from tests.interop.shadow import shadow
from tests.interop.steps import RECORDINGS, save
from tests.interop.traces import traces_continue
from tests.servers import Server

STEPS = 30
# Enough for 10,000 steps altogether: a random history has some 20 steps on average.
FULL, QUICK = 200, 40
KINDS: dict[str, Callable[[Server], Side]] = {
    "toril's commands": lambda server: CommandSide(server, batched=False),
    "toril's batches": lambda server: CommandSide(server, batched=True),
    "toril's applications": ApplicationSide,
    "toril's limited, counting workers": lambda server: ApplicationSide(server, STRICT),
}
# Beside 6.7.0, with its modes of deduplication.
DEDUPLICATING = ("toril's batches", "toril's applications")
_HISTORIES = {QueueHistory: "random histories", DeduplicationHistory: "deduplication modes of 6.7.0"}
Scenario = Callable[[Ground], Awaitable[Result]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    quick = parser.parse_args().quick
    logging.disable()  # Many jobs are made to fail; their log lines are not news.
    results: list[Result] = []
    for result in _all(quick):
        results.append(result)
        _print_result(result)
    _table(results)
    return 1 if any(result.differences for result in results) else 0


def _all(quick: bool) -> Iterator[Result]:
    with Server.valkey() as left, Server.valkey() as right, Reference() as bullmq:
        for title, make in KINDS.items():
            rules = STRICT if "limited" in title else NO_RULES
            with _lockstep(bullmq, left, right, make, rules) as lockstep:
                yield _random_histories(title, lockstep, QUICK if quick else FULL)
        with Reference(SIX) as bullmq6:
            for title in DEDUPLICATING:
                with _lockstep(bullmq6, left, right, KINDS[title], comparable=comparable) as lockstep:
                    sequences = QUICK if quick else FULL
                    yield _random_histories(title, lockstep, sequences, DeduplicationHistory)
        yield _planted(bullmq, left, right)
        bullmq.set_clock(None)
        for scenario in _scenarios(100 if quick else 2000):
            ground = Ground(left, f"run{uuid.uuid4().hex[:8]}", bullmq)
            yield asyncio.run(_run(scenario, ground))
    yield compare_generations()


async def _run(scenario: Scenario, ground: Ground) -> Result:
    return await scenario(ground)


def _scenarios(jobs: int) -> Sequence[Scenario]:
    return (
        lambda ground: scenarios.node_producer_toril_worker(ground, jobs),
        lambda ground: scenarios.toril_producer_node_worker(ground, jobs),
        lambda ground: shadow(ground, jobs),
        lambda ground: scenarios.events_alike(ground, jobs // 4),
        lambda ground: scenarios.finishes_awaited(ground, jobs // 10),
        lambda ground: scenarios.toril_recovers_what_node_left(ground, 20),
        lambda ground: scenarios.node_recovers_what_toril_left(ground, 20),
        traces_continue,
        walk_the_board,
    )


@contextmanager
def _lockstep(
    bullmq: Reference,
    left: Server,
    right: Server,
    make: Callable[[Server], Side],
    rules: Rules = NO_RULES,
    comparable: Callable[[Keyspace], Keyspace] = unchanged,
) -> Iterator[Lockstep]:
    reference, tested = NodeSide(bullmq, left, rules=rules), make(right)
    same_tokens = not isinstance(tested, ApplicationSide)
    lockstep = Lockstep(reference, tested, same_tokens=same_tokens, comparable=comparable)
    try:
        yield lockstep
    finally:
        lockstep.reference.close()
        tested.close()


def _random_histories(
    title: str, lockstep: Lockstep, sequences: int, history: type[RandomHistory] = QueueHistory
) -> Result:
    found: list[str] = []
    try:
        run_random_histories(lockstep, sequences=sequences, steps=STEPS, history=history)
    except Differs as difference:
        kept = RECORDINGS / f"found-{uuid.uuid4().hex[:8]}.json"
        save(lockstep.steps, kept)
        found = [f"{difference}\nkept as {kept}"]
    tally = lockstep.tally
    return Result(
        scenario=f"{_HISTORIES[history]}, Node beside {title}",
        jobs=tally.steps,
        differences=found,
        note=f"{tally.sequences} sequences, {tally.steps} steps, {len(tally.by_operation)} operations",
    )


def _planted(bullmq: Reference, left: Server, right: Server) -> Result:
    """Bugs put into toril's side on purpose: one that is not found is a difference."""
    missed: list[str] = []
    for bug in BUGS:
        with _lockstep(bullmq, left, right, functools.partial(_spoilt, bug)) as lockstep:
            try:
                run_random_histories(lockstep, sequences=150, steps=20, fixed=True, shrink=False)
            except Differs:
                continue
        missed.append(f"{bug.__name__} was not found")
    note = f"{len(BUGS) - len(missed)} of {len(BUGS)} found"
    return Result(scenario="planted bugs", jobs=len(BUGS), differences=missed, note=note)


def _spoilt(bug: Spoil, server: Server) -> Side:
    return PlantedBug(CommandSide(server, batched=True), bug)


def _print_result(result: Result) -> None:
    print(
        f"{time.strftime('%H:%M:%S')} {result.scenario}: {len(result.differences)} difference(s)", flush=True
    )
    for difference in result.differences[:5]:
        print(f"    {difference}", flush=True)


def _table(results: Sequence[Result]) -> None:
    wide = max(len(result.scenario) for result in results)
    print(f"\n{'scenario':{wide}}  {'jobs':>6}  differences")
    for result in results:
        print(f"{result.scenario:{wide}}  {result.jobs:>6}  {len(result.differences):>11}  {result.note}")
    print(f"{'total':{wide}}  {'':>6}  {sum(len(result.differences) for result in results):>11}")


if __name__ == "__main__":
    sys.exit(main())
