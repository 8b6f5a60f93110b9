"""Encodes the results of handlers, and notes what their errors mean for the job.

Guarantee: a result that is too large, or has no JSON form, fails where the handler ran, before it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from toril.errors import ResultTooLarge, WaitingChildrenError
from toril.jobs.base import JobBase
from toril.protocol.codec import to_json

Encode = Callable[[Any], bytes | None]  # can be pickled: it is sent to child processes


class Returned(NamedTuple):
    """A handler's result, and its JSON; None where results are not kept."""

    value: Any
    json: bytes | None


def encode_result(limit: int | None, result: object) -> bytes:
    """The JSON of a result of at most `limit` bytes."""
    json = to_json(result, field="result")
    if limit is not None and len(json) > limit:
        raise ResultTooLarge(
            f"the handler returned {len(json)} bytes of JSON and max_result_size allows {limit}; store the result "
            "elsewhere and return a reference, or raise the worker's max_result_size"
        )
    return json


def note_move(error: BaseException, job: object) -> None:
    """Marks that the handler has moved its job to waiting-children itself."""
    if isinstance(error, WaitingChildrenError) and isinstance(job, JobBase) and job.waits_for_children:
        error.moved = True


def drop_result(result: object) -> None:
    """For queues that keep no results."""
