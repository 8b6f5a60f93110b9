"""The process of a handler: reads jobs from a pipe, runs them, and sends back a result or an error for each.

Guarantee: whatever a handler returns or raises, one answer is sent that the parent can read; an error that cannot be
sent, or is too large, is replaced by one of the same category. The process ends with its parent.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from toril.errors import PermanentError, TransientError
from toril.protocol.classify import ErrorCategory, known_category, retry_after
from toril.protocol.stack_trace import message_of, stack_of
from toril.transport import default_server
from toril.worker._process_stats import resident_bytes
from toril.worker._results import Encode, Returned, note_move

BEGUN = "begun"  # what a child sends before it runs a job
# Larger errors are replaced: the parent blocks its interpreter while it reads them.
LARGEST_ERROR = 1024 * 1024


class JobPacker(Protocol):
    """How a job is sent to a child. It is pickled, and used on both sides."""

    def pack(self, job: Any, /) -> Any:
        """Makes what is sent, in the parent."""

    def unpack(self, packed_job: Any, /) -> Any:
        """Makes the handler's job object of it, in the child."""


class Program(NamedTuple):
    """What a child runs, pickled once for all children."""

    handler: bytes
    packer: bytes
    encode: bytes


class Answer(NamedTuple):
    """The result or error of one job."""

    ok: bool
    value: bytes  # the pickled result or error
    json: bytes | None  # the result as the queue stores it
    replacement: bytes  # a pickled error, if the parent cannot read `value`
    memory: int
    # Of an error: what the parent cannot know, because causes are not pickled.
    trace: str = ""
    category: str | None = None
    retry_after: float | None = None


class UnknownHandlerError(Exception):
    """Replaces an error that could not be sent, and whose category is unknown."""


def serve(pipe: Connection, program: Program, folder: str, warned: bool) -> None:
    """Runs jobs from the pipe and sends answers, until the pipe closes.

    `folder` is the parent's default server: `Queue("…")` in a handler uses it, too.
    """
    default_server.inherit(folder, warned=warned)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="toril-parent", daemon=True).start()
    # The parent must not wait for this process, hence it is a daemon; but handlers may start processes.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # noqa: SLF001
    run, packer, encode = (pickle.loads(one) for one in program)  # our own parent's bytes
    while True:
        try:
            packed_job = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(BEGUN)
        pipe.send(_attempt(run, packer, encode, packed_job))


def _end_with_parent() -> None:
    """Ends the process with its parent: another worker gets the job of a handler that still runs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _attempt(run: Callable[[Any], object], packer: JobPacker, encode: Encode, packed_job: object) -> Answer:
    job = None
    try:
        job = packer.unpack(packed_job)
        result = run(job)
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
        return _success(result, encode(result))
    except BaseException as error:  # sys.exit in a handler is a failure of its job
        note_move(error, job)
        return _failure(error)


def answer_of(result: Returned | BaseException) -> Answer:
    """The answer for one job of a batch."""
    if isinstance(result, BaseException):
        return _failure(result)
    try:
        return _success(result.value, result.json)
    except Exception as error:  # pickling a result runs a user's code, which may raise anything
        return _failure(error)


def _success(result: object, json: bytes | None) -> Answer:
    return Answer(True, pickle.dumps(result), json, _unreadable("returned"), resident_bytes())


def _failure(error: BaseException) -> Answer:
    replacement = pickle.dumps(_replacement(error))
    category = known_category(error)
    return Answer(
        ok=False,
        value=_pickled_error(error) or replacement,
        json=None,
        replacement=replacement,
        memory=resident_bytes(),
        trace=stack_of(error),
        category=None if category is None else category.value,
        retry_after=retry_after(error),
    )


def _pickled_error(error: BaseException) -> bytes | None:
    """The pickled error; None when it cannot be unpickled, or is too large."""
    if isinstance(error, asyncio.CancelledError):
        return None  # in the parent it would mean that the worker's own task was cancelled
    try:
        raw = pickle.dumps(error)
        readable = isinstance(pickle.loads(raw), BaseException)
    except BaseException:  # pickling an error runs a user's code, which may raise anything
        return None
    return raw if readable and len(raw) <= LARGEST_ERROR else None


def _replacement(error: BaseException) -> Exception:
    """An error of toril with the same message and category."""
    message = message_of(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    category = known_category(error)
    if category is ErrorCategory.TRANSIENT:
        return TransientError(text, retry_after=retry_after(error))
    return PermanentError(text) if category is ErrorCategory.PERMANENT else UnknownHandlerError(text)


def _unreadable(what: str) -> bytes:
    problem = f"what the handler {what} cannot be read by its worker"
    return pickle.dumps(PermanentError(f"{problem}: its class cannot be unpickled there; use plain values"))
