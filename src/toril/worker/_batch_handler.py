"""Calls a handler of batches, and divides what it returned, raised or noted among the jobs of the batch.

Guarantee: each job of a batch has exactly one result or error. A return value that does not fit the batch fails all of
its jobs; a result that cannot be stored fails its own job.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from toril.errors import PermanentError, ProcessDied, TransientError
from toril.jobs.job_batch import JobBatch
from toril.worker._executors import Handler
from toril.worker._process_child import Answer, JobPacker, answer_of
from toril.worker._process_pool import ProcessExecutor, result_of
from toril.worker._results import Encode, Returned, drop_result, note_move

# For each job of a batch, in order.
Results: TypeAlias = list[Returned | BaseException]


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """A plain function of a batch, in a thread; it can be sent to a process."""

    function: Handler
    encode: Encode

    def __call__(self, batch: JobBatch[Any]) -> Results:
        try:
            returned = self.function(batch)
            if inspect.iscoroutine(returned):
                returned = asyncio.run(returned)  # a coroutine function in a process
        except BaseException as error:  # whatever the handler raises is the error of its jobs
            return _all_failed(batch, error)
        return _divided(batch, returned, self.encode)


@dataclass(frozen=True, slots=True)
class AsyncBatchHandler:
    """A coroutine function of a batch, in the event loop."""

    function: Handler
    encode: Encode

    async def __call__(self, batch: JobBatch[Any]) -> Results:
        try:
            returned = await self.function(batch)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # see BatchHandler
            return _all_failed(batch, error)
        return _divided(batch, returned, self.encode)


def _all_failed(batch: JobBatch[Any], error: BaseException) -> Results:
    return [_error_given_by_handler(batch, at) or error for at in range(len(batch.jobs))]


def _divided(batch: JobBatch[Any], returned: object, encode: Encode) -> Results:
    number = len(batch.jobs)
    results = [None] * number if returned is None else returned
    if not isinstance(results, Sequence) or isinstance(results, str | bytes) or len(results) != number:
        what = f"{len(results)} results" if isinstance(results, list | tuple) else type(results).__name__
        problem = (
            f"the handler returned {what} for a batch of {number} jobs; return None or a list of {number}"
        )
        return _all_failed(batch, PermanentError(problem))
    return [_error_given_by_handler(batch, at) or _encoded(one, encode) for at, one in enumerate(results)]


def _error_given_by_handler(batch: JobBatch[Any], at: int) -> BaseException | None:
    error = batch.error_of(at)
    if error is not None:
        note_move(error, batch.jobs[at])
    return error


def _encoded(result: object, encode: Encode) -> Returned | BaseException:
    if isinstance(result, BaseException):
        return result
    try:
        return Returned(result, encode(result))
    except Exception as error:  # an object of the application that has no JSON form may raise anything
        return error


# --- processes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ChildHandler:
    """Runs in the child: results and errors as answers that the parent can read."""

    handler: BatchHandler

    def __call__(self, batch: JobBatch[Any]) -> list[Answer]:
        return [answer_of(one) for one in self.handler(batch)]


@dataclass(frozen=True, slots=True)
class _BatchPacker:
    """Packs each job of a batch."""

    packer: JobPacker

    def pack(self, batch: JobBatch[Any], /) -> list[Any]:
        return [self.packer.pack(one) for one in batch.jobs]

    def unpack(self, packed: Sequence[object], /) -> JobBatch[Any]:
        return JobBatch(self.packer.unpack(one) for one in packed)


class BatchProcessExecutor(ProcessExecutor):
    """A process for each running batch."""

    def __init__(
        self,
        handler: Handler,
        packer: JobPacker,
        *,
        encode: Encode,
        max_jobs: int | None,
        max_memory: int | None,
    ) -> None:
        in_child = _ChildHandler(BatchHandler(handler, encode))
        super().__init__(
            in_child, _BatchPacker(packer), encode=drop_result, max_jobs=max_jobs, max_memory=max_memory
        )

    async def run(self, job: JobBatch[Any]) -> Returned:
        packed = self._packer.pack(job)
        try:
            answers = await self._send(job.jobs[0].id, packed)
        except ProcessDied as error:
            if len(packed) == 1:
                raise
            # Which of them it was cannot be known: the others must not fail for good because of it.
            raise TransientError(
                f"the process that ran a batch of {len(packed)} jobs died: {error}"
            ) from error
        return Returned([_read(one) for one in answers.value], None)


def _read(answer: Answer) -> Returned | BaseException:
    try:
        return result_of(answer)
    except BaseException as error:  # the error of one job of the batch
        return error
