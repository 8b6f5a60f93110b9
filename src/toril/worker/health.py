"""The health of a worker.

Guarantee: it costs no I/O. A worker is alive while its own services run, whether or not Redis can be reached: a restart
would not help. It is ready when it also fetches jobs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """The health of a worker at one moment."""

    state: str
    connected: bool = False  # the last call reached Redis
    sweeping: bool = False  # stalled sweeps run when they are due
    keeping_locks: bool = False  # the lock renewer runs when it is due
    taking: bool = False  # fetches jobs: it is neither paused nor stopping
    jobs: int = 0  # that run
    longest_job: float = 0.0  # seconds since the oldest of them began

    @property
    def alive(self) -> bool:
        return self.keeping_locks and self.sweeping

    @property
    def ready(self) -> bool:
        return self.alive and self.connected and self.taking
