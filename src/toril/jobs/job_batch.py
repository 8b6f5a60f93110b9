"""`JobBatch`: the jobs that a handler of batches gets, and the errors of single ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from toril.errors import InvalidOption

J = TypeVar("J")


class JobBatch(list[J]):
    """The jobs of one batch, a list. A job of a list or stream queue is an `Envelope`."""

    def __init__(self, jobs: Iterable[J]) -> None:
        super().__init__(jobs)
        self._given = tuple(self)  # a handler may change the list
        self._errors: dict[int, BaseException] = {}

    def fail(self, job: J, error: BaseException) -> None:
        """Ends the attempt of one job with an error; the others have what the handler returns or raises.

        The error means what it would mean if a handler of this job alone had raised it: `Postpone` delays the job,
        `RateLimitError` puts it back and holds the queue.
        """
        at = next((at for at, one in enumerate(self._given) if one is job), None)
        if at is None:
            raise InvalidOption("job", "is not in this batch", "give a job of the list that the handler got")
        if not isinstance(error, BaseException):
            raise InvalidOption("error", f"is a {type(error).__name__}", "give an exception")
        self._errors[at] = error

    @property
    def jobs(self) -> tuple[J, ...]:
        """The jobs in the order in which the handler got them."""
        return self._given

    def error_of(self, at: int) -> BaseException | None:
        """The error that `fail` gave to the job at this position."""
        return self._errors.get(at)
