"""The stack trace that is stored with a failed job: where the user's code went wrong, not how it was called.

Guarantee: frames of the worker above the handler do not appear, nor any frame of an error that toril raised by itself;
causes, contexts and groups stay. An unexpected error inside toril keeps all its frames: there, they are what somebody
needs to see. The trace of a handler in another process is the one that was made there.
"""

from __future__ import annotations

import traceback
from itertools import dropwhile
from pathlib import Path
from types import TracebackType
from typing import Final

from toril.contract.errors import TorilError

_LIBRARY: Final = f"{Path(__file__).parents[1]}/"
_MACHINERY: Final = f"{_LIBRARY}worker/"  # what stands between the event loop and a handler


class RemoteTrace(Exception):
    """The cause of an error that was raised in another process: its stack trace, as text.

    The causes and contexts of the error stayed there, so what they told comes along: `category` ("transient",
    "permanent" or None for unknown) and `retry_after` in seconds.
    """

    def __init__(self, text: str, category: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.category = category
        self.retry_after = retry_after


def stack_of(error: BaseException) -> str:
    """The stack trace of an error, with its causes."""
    if isinstance(error.__cause__, RemoteTrace):
        return str(error.__cause__)
    report = traceback.TracebackException.from_exception(error)
    _trim(report, error)
    return "".join(report.format())


def user_traceback(error: BaseException) -> TracebackType | None:
    """The frames of an error from the user's code on; all of them if there are no others."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_MACHINERY):
        frame = frame.tb_next
    return frame or error.__traceback__


def _trim(report: traceback.TracebackException, error: BaseException) -> None:
    """Not by recursion, for chains of causes may be long. A report holds no ring, even where its errors do."""
    todo = [(report, error)]
    while todo:
        told, raised = todo.pop()
        told.stack[:] = _telling(list(told.stack), raised)
        if told.__cause__ is not None and raised.__cause__ is not None:
            todo.append((told.__cause__, raised.__cause__))
        if told.__context__ is not None and raised.__context__ is not None:
            todo.append((told.__context__, raised.__context__))
        if told.exceptions is not None and isinstance(raised, BaseExceptionGroup):
            todo += zip(told.exceptions, raised.exceptions, strict=False)


def _telling(frames: list[traceback.FrameSummary], error: BaseException) -> list[traceback.FrameSummary]:
    """The frames that tell a user something."""
    own = list(dropwhile(lambda frame: frame.filename.startswith(_MACHINERY), frames))
    if any(not frame.filename.startswith(_LIBRARY) for frame in own):
        return own
    # Early Pythons 3.11 wrap what is raised within `except*` in a group without frames of the handler.
    return [] if isinstance(error, TorilError | BaseExceptionGroup) else frames
