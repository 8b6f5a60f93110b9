"""The process of a handler: takes jobs from a pipe, runs them, and sends back what became of each.

Guarantee: whatever a handler returns or raises, one answer comes back that the parent can read; an error that cannot be
sent, or is too large for that, is replaced by one of the same category. The process ends with its parent.
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
from typing import Any, NamedTuple

from toril.errors import PermanentError, TransientError
from toril.protocol.classify import ErrorCategory, known_category, retry_after
from toril.protocol.outcome import note_move
from toril.protocol.stack_trace import message_of, stack_of
from toril.transport import default_server
from toril.worker._process_stats import resident_bytes
from toril.worker._results import Encode

BEGUN = "begun"  # what a child says before it runs a job
Opener = Callable[[Any], Any]  # makes the handler's job object from what was sent, inside the child
# Bytes of an error that is sent as it is: the parent reads it while it holds the interpreter.
LARGEST_ERROR = 1024 * 1024


class Program(NamedTuple):
    """What a child runs, pickled once for all children."""

    handler: bytes
    opener: bytes
    encode: bytes


class Answer(NamedTuple):
    """What became of one job."""

    ok: bool
    value: bytes  # the pickled result or error
    json: bytes | None  # the result as the queue keeps it
    stand_in: bytes  # a pickled error for a parent that cannot read `value`
    memory: int
    # Of an error: what the parent cannot find out by itself, because causes do not travel with it.
    trace: str = ""
    category: str | None = None
    retry_after: float | None = None


class UnknownHandlerError(Exception):
    """Stands for an error that could not be sent, and of whose kind nothing is known."""


def serve(pipe: Connection, program: Program, folder: str, warned: bool) -> None:
    """Runs jobs that come through the pipe and sends answers back, until the pipe closes.

    `folder` is the parent's default server: a handler that makes a `Queue("…")` means that one.
    """
    default_server.inherit(folder, warned=warned)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="toril-parent", daemon=True).start()
    # A daemon is what the parent must not wait for; here it would forbid handlers to have children.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # noqa: SLF001
    run, make_job, encode = (pickle.loads(one) for one in program)  # noqa: S301  # our own parent's bytes
    while True:
        try:
            transfer_job = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(BEGUN)
        pipe.send(_attempt(run, make_job, encode, transfer_job))


def _end_with_parent() -> None:
    """A handler that hangs, or would go on for hours, must not outlive the worker: its job is another's by then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _attempt(run: Callable[[Any], Any], make_job: Opener, encode: Encode, transfer_job: Any) -> Answer:
    job = None
    try:
        job = make_job(transfer_job)
        result = run(job)
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
        json = encode(result)
        return Answer(True, pickle.dumps(result), json, _unreadable("returned"), resident_bytes())
    except BaseException as error:  # noqa: BLE001  # sys.exit in a handler is a failure of its job
        note_move(error, job)
        return _failure(error)


def _failure(error: BaseException) -> Answer:
    stand_in = pickle.dumps(_stand_in(error))
    category = known_category(error)
    return Answer(
        ok=False,
        value=_portable(error) or stand_in,
        json=None,
        stand_in=stand_in,
        memory=resident_bytes(),
        trace=stack_of(error),
        category=None if category is None else category.value,
        retry_after=retry_after(error),
    )


def _portable(error: BaseException) -> bytes | None:
    """An error, pickled; None when it cannot be read again, or is too large to be sent."""
    if isinstance(error, asyncio.CancelledError):
        return None  # in the parent it would say that the worker's own task was cancelled
    try:
        raw = pickle.dumps(error)
        readable = isinstance(pickle.loads(raw), BaseException)  # noqa: S301
    except BaseException:  # noqa: BLE001  # pickling an error runs a user's code, which may raise anything
        return None
    return raw if readable and len(raw) <= LARGEST_ERROR else None


def _stand_in(error: BaseException) -> Exception:
    """An error of ours that says the same and is treated alike."""
    message = message_of(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    category = known_category(error)
    if category is ErrorCategory.TRANSIENT:
        return TransientError(text, retry_after=retry_after(error))
    return PermanentError(text) if category is ErrorCategory.PERMANENT else UnknownHandlerError(text)


def _unreadable(what: str) -> bytes:
    return pickle.dumps(PermanentError(f"what the handler {what} cannot be read by its worker"))
