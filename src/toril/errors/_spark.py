"""Errors of the Spark pipeline, its sources and its sinks."""

from __future__ import annotations

from toril.errors._base import TorilError


class SparkUnavailable(TorilError):
    """Spark cannot start here; the message has the reason."""


class PipelineFailed(TorilError):
    """A step of the pipeline ended with an error of Spark; the message holds its cause."""


class QueueMissing(TorilError):
    """A queue that was asked for does not exist: .queues"""

    def __init__(self, queues: list[str], where: str, prefix: str) -> None:
        super().__init__(
            f"no queue {', '.join(map(repr, queues))} under prefix {prefix!r} at {where}; check the name and the "
            'prefix, or set option("missing", "ignore") to wait for it'
        )
        self.queues = queues


class QueueStaysFull(TorilError):
    """The queue stayed full for longer than `wait_timeout`: .queue .waiting"""

    def __init__(self, queue: str, waiting: int | None, seconds: float) -> None:
        super().__init__(
            f"queue {queue!r} held {waiting} jobs for {seconds:g} s; add workers, or raise max_waiting or wait_timeout"
        )
        self.queue = queue
        self.waiting = waiting


class RunChanged(TorilError):
    """A save under the name of an earlier run whose rows cannot be recognised: .run"""

    def __init__(self, run: str, problem: str, remedy: str) -> None:
        super().__init__(f"run {run!r}: {problem}; nothing was added by this call. {remedy}")
        self.run = run

    @classmethod
    def moved(cls, run: str, now: int, before: int) -> RunChanged:
        return cls(
            run,
            f"a row of partition {now} was saved before as one of partition {before}, and rows without job_id are "
            "known by content and partition",
            "Repeat the save with the partitioning of the first one. For new runs: name columns that identify rows "
            'with option("key", "…"), or use toril.spark.enqueue(df, …), for which partitions do not matter',
        )

    @classmethod
    def known_otherwise(cls, run: str, now: str, before: str) -> RunChanged:
        return cls(
            run,
            f"it knows its rows by {before} and this save by {now}, so what was saved cannot be recognised",
            f"Repeat the save as it was first made, with rows known by {before}, or choose a new run, which adds "
            "every row",
        )


class OutsideSparkTask(TorilError):
    """A writer was called outside of a Spark task."""


class EventsLost(TorilError):
    """Events were trimmed before they were read, and the reader was told to fail."""

    def __init__(self, queue: str, lost: int | None) -> None:
        count = "an unknown number of" if lost is None else str(lost)
        super().__init__(
            f"{count} events of {queue!r} were trimmed before they were read; leave on_gap out to get a row for them, "
            "or start after them (since, starting)"
        )
        self.queue = queue
        self.lost = lost

    def __reduce__(self) -> tuple[type[EventsLost], tuple[str, int | None]]:
        return type(self), (self.queue, self.lost)
