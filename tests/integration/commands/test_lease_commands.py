"""Leases: a task that is repeated gets the jobs that are still its own, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.integration.commands.conftest import NOW, QueueDriver
from toril.commands import leases
from toril.commands.worker import Pickup

LOCK_MS = 30_000


def take(driver: QueueDriver, lease: str, capacity: int = 3) -> list[str]:
    pickup = Pickup(token=lease, lock_ms=LOCK_MS)
    command = leases.take_leased(driver.keys, lease, capacity=capacity, pickup=pickup, now_ms=NOW)
    return [job_id for job_id, _ in driver.run(command).jobs]


def renew(driver: QueueDriver, lease: str) -> int:
    return driver.run(leases.renew_lease(driver.keys, lease, lease, lock_ms=LOCK_MS))


def test_a_lease_that_is_asked_for_again_returns_the_same_jobs(driver: QueueDriver) -> None:
    driver.add("a", "b", "c", "d")
    assert take(driver, "first", 2) == ["a", "b"]
    assert take(driver, "first", 4) == ["a", "b"]
    assert take(driver, "second", 4) == ["c", "d"]


def test_a_lock_that_expired_is_taken_again_if_nobody_had_the_job_meanwhile(
    driver: QueueDriver, raw_command: Callable[..., Any]
) -> None:
    driver.add("a", "b", "c", "d")
    assert take(driver, "first", 4) == ["a", "b", "c", "d"]
    for job_id in ("a", "b", "c"):
        raw_command("DEL", driver.keys.lock(job_id))
    raw_command("LREM", driver.keys.active, 0, "b")  # a sweep has returned it to the queue
    raw_command("HSET", driver.keys.job("c"), "ats", 2)  # another worker has fetched it since
    assert renew(driver, "first") == 2
    assert raw_command("GET", driver.keys.lock("a")) == b"first"
    raw_command("DEL", driver.keys.lock("a"))
    assert take(driver, "first", 4) == ["a", "d"]
