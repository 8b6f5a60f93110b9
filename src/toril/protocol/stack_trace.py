"""The stack trace that is stored with a failed job: where the user's code went wrong, not how it was called.

Guarantee: frames of the worker above the handler do not appear, nor any frame of an error that toril raised by itself;
causes, contexts and groups stay. An unexpected error inside toril keeps all its frames: there, they are what somebody
needs to see. The trace of a handler in another process is the one that was made there. Whatever an error's methods do,
and however long its message is, a trace of bounded length comes back, and long texts are cut before they are formatted.
"""

from __future__ import annotations

import traceback
from itertools import dropwhile
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from toril.errors import TorilError

_LIBRARY: Final = f"{Path(__file__).parents[1]}/"
_MACHINERY: Final = f"{_LIBRARY}worker/"  # what stands between the event loop and a handler
# Characters of a reason or stack trace: they are stored with the job and read by people.
LONGEST_TEXT: Final = 16_000
# Characters of one message within a trace: the frames must remain in sight.
_LONGEST_MESSAGE: Final = 4_000
_MOST_NOTES: Final = 100
_LEFT_OUT: Final = " characters…]"


class RemoteTrace(Exception):
    """The cause of an error that was raised in another process: its stack trace, as text.

    The causes and contexts of the error stayed there, so what they told comes along: `category` ("transient",
    "permanent" or None for unknown) and `retry_after` in seconds.
    """

    def __init__(self, text: str, category: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.category = category
        self.retry_after = retry_after


def is_remote(error: BaseException) -> bool:
    """Whether an error was raised in another process."""
    return isinstance(error.__cause__, RemoteTrace)


def stack_of(error: BaseException) -> str:
    """The stack trace of an error, with its causes."""
    if is_remote(error):
        return str(error.__cause__)
    try:
        report = traceback.TracebackException.from_exception(error)
        _trim(report, error)
        return storable("".join(report.format()))
    except BaseException:  # noqa: BLE001  # attributes and methods of an error are a user's code
        return f"{type(error).__name__}: its stack trace cannot be formatted"


def was_cut(stack: str) -> bool:
    """Whether a message is longer than what stands in the stack trace: whoever formats its error holds up others."""
    return _LEFT_OUT in stack


def message_of(error: BaseException) -> str:
    """The message of an error, cut to what people read; empty when there is none, or none that can be printed."""
    try:
        return storable(str(error))
    except BaseException:  # noqa: BLE001  # an error that cannot even be printed still has a type
        return ""


def storable(text: str) -> str:
    """Text that can be written to Redis: valid Unicode, and short enough; the end tells most, so it stays."""
    short = text if len(text) <= LONGEST_TEXT else f"…{text[-LONGEST_TEXT:]}"
    return short.encode("utf-8", "replace").decode()


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
        _shorten(told)
        if told.__cause__ is not None and raised.__cause__ is not None:
            todo.append((told.__cause__, raised.__cause__))
        if told.__context__ is not None and raised.__context__ is not None:
            todo.append((told.__context__, raised.__context__))
        if told.exceptions is not None and isinstance(raised, BaseExceptionGroup):
            todo += zip(told.exceptions, raised.exceptions, strict=False)


def _shorten(told: traceback.TracebackException) -> None:
    """Cuts the message and the notes before anything is made of them: they may have millions of characters."""
    message = getattr(told, "_str", None)  # where every Python so far keeps it, for lack of a public name
    if isinstance(message, str):
        told._str = _ends_of(message)  # type: ignore[attr-defined]  # noqa: SLF001
    notes: Any = told.__notes__  # whatever stood under that name
    if isinstance(notes, list):
        told.__notes__ = [_ends_of(one) if isinstance(one, str) else one for one in notes[:_MOST_NOTES]]
        if len(notes) > _MOST_NOTES:
            missing = sum(len(one) for one in notes[_MOST_NOTES:] if isinstance(one, str))
            told.__notes__.append(f"[…{len(notes) - _MOST_NOTES} notes of {missing}{_LEFT_OUT}")


def _ends_of(text: str) -> str:
    """Both ends of a long text, and how much is missing between them."""
    if len(text) <= _LONGEST_MESSAGE:
        return text
    half = _LONGEST_MESSAGE // 2
    return f"{text[:half]} […{len(text) - 2 * half}{_LEFT_OUT} {text[-half:]}"


def _telling(frames: list[traceback.FrameSummary], error: BaseException) -> list[traceback.FrameSummary]:
    """The frames that tell a user something."""
    own = list(dropwhile(lambda frame: frame.filename.startswith(_MACHINERY), frames))
    if any(not frame.filename.startswith(_LIBRARY) for frame in own):
        return own
    # Early Pythons 3.11 wrap what is raised within `except*` in a group without frames of the handler.
    return [] if isinstance(error, TorilError | BaseExceptionGroup) else frames
