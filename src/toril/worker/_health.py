"""How a worker is, in a few words.

Guarantee: telling costs no I/O. A worker is alive while its own services run, whether or not Redis can be reached:
starting it again would not bring Redis back. It is ready when it also takes jobs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """What is true of a worker at one moment."""

    state: str
    connected: bool = False  # the last call reached Redis
    sweeping: bool = False  # jobs of dead workers are looked for, on time
    keeping_locks: bool = False  # the thread of heartbeats turns, on time
    taking: bool = False  # neither paused nor on its way out
    jobs: int = 0  # in hand
    longest_job: float = 0.0  # seconds for which the oldest of them has run

    @property
    def alive(self) -> bool:
        return self.keeping_locks and self.sweeping

    @property
    def ready(self) -> bool:
        return self.alive and self.connected and self.taking
