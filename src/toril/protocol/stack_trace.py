"""The stack trace that is stored with a failed job: where the user's code went wrong, not how it was called.

Guarantee: frames of the worker and of apps around the handler do not appear, nor any frame of an error that toril
raised by itself; causes, contexts and groups stay. An unexpected error inside toril keeps all its frames, which a
developer needs. Notes have a heading, so that a reader can tell them from the lines of the message. The trace of a
handler in another process is the one that was made there. Whatever an error's methods do, and however long its message
is, the trace has a bounded length, and long texts are cut before they are formatted.
"""

from __future__ import annotations

import contextlib
import traceback
from itertools import dropwhile
from pathlib import Path
from types import TracebackType
from typing import Final

from toril.errors import TorilError

_LIBRARY: Final = f"{Path(__file__).parents[1]}/"
# Around a function of a user in a web framework.
_INTEGRATIONS: Final = (
    f"{_LIBRARY}integrations/django/handlers.py",
    f"{_LIBRARY}integrations/django/calls.py",
    f"{_LIBRARY}integrations/flask.py",
)
# Between the event loop and a handler or task.
_MACHINERY: Final = (f"{_LIBRARY}worker/", f"{_LIBRARY}app/", *_INTEGRATIONS)
# Between middleware, dependencies and the function of a task; the worker's, if it runs in a thread.
_WRAPPERS: Final = (
    f"{_LIBRARY}worker/",
    f"{_LIBRARY}app/_runner.py",
    f"{_LIBRARY}app/middleware.py",
    f"{_LIBRARY}app/_direct_call.py",
    *_INTEGRATIONS,
)
# Characters of a reason or stack trace: they are stored with the job and read by people.
LONGEST_TEXT: Final = 16_000
# Characters of one message within a trace, so that the frames stay visible.
_LONGEST_MESSAGE: Final = 4_000
_MOST_NOTES: Final = 100
# The line before the notes of an error. The last one in a trace is it: there is one, even without notes, where the
# message has such a line, and none in the notes.
NOTES: Final = "Notes of this error:"
_LEFT_OUT: Final = " characters…]"
_SHORTENED: Final = "…"


class RemoteTrace(Exception):
    """The cause of an error that was raised in another process: its stack trace, as text.

    Its causes and contexts are not transferred, but what follows from them: `category` ("transient", "permanent" or
    None for unknown) and `retry_after` in seconds.
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
    with contextlib.suppress(BaseException):  # attributes and methods of an error are a user's code
        report = traceback.TracebackException.from_exception(error)
        _trim(report, error)
        return storable("".join(report.format()))
    return f"{type(error).__name__}: its stack trace cannot be formatted"


def was_cut(stack: str) -> bool:
    """Returns whether the message was cut in the stack trace: formatting the error itself would take long."""
    return _LEFT_OUT in stack


def was_shortened(stack: str) -> bool:
    """Returns whether only the end of a stack trace was stored."""
    return stack.startswith(_SHORTENED)


def message_of(error: BaseException) -> str:
    """Returns the message of an error, cut to `LONGEST_TEXT`; empty when there is none, or it cannot be printed."""
    with contextlib.suppress(BaseException):
        return storable(str(error))
    return ""


def storable(text: str) -> str:
    """Returns text that can be stored: valid Unicode of limited length; the end is kept."""
    short = text if len(text) <= LONGEST_TEXT else f"{_SHORTENED}{text[-LONGEST_TEXT:]}"
    return short.encode("utf-8", "replace").decode()


def user_traceback(error: BaseException) -> TracebackType | None:
    """Returns the frames of an error from the user's code on; all of them if there are no others."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_MACHINERY):
        frame = frame.tb_next
    return frame or error.__traceback__


def _trim(report: traceback.TracebackException, error: BaseException) -> None:
    """Without recursion, because chains of causes may be long. A report has no cycles, even where its errors have."""
    todo = [(report, error)]
    while todo:
        shown, raised = todo.pop()
        shown.stack[:] = _user_frames(list(shown.stack), raised)
        _shorten(shown)
        if shown.__cause__ is not None and raised.__cause__ is not None:
            todo.append((shown.__cause__, raised.__cause__))
        if shown.__context__ is not None and raised.__context__ is not None:
            todo.append((shown.__context__, raised.__context__))
        if shown.exceptions is not None and isinstance(raised, BaseExceptionGroup):
            todo += zip(shown.exceptions, raised.exceptions, strict=False)


def _shorten(shown: traceback.TracebackException) -> None:
    """Cuts the message and the notes before they are formatted: they may have millions of characters."""
    message = getattr(shown, "_str", None)  # there is no public name for it
    if isinstance(message, str):
        shown._str = _ends_of(message)  # type: ignore[attr-defined]  # noqa: SLF001
    notes: object = shown.__notes__  # may be anything
    if notes is None or isinstance(notes, list):
        shown.__notes__ = _with_heading(shown, _shortened_notes(notes or []))  # type: ignore[assignment]


def _shortened_notes(notes: list[object]) -> list[object]:
    """The first notes; each has its share of the length of one message, so that the message stays visible."""
    kept = notes[:_MOST_NOTES]
    texts = [one for one in kept if isinstance(one, str)]
    is_long = sum(map(len, texts)) > _LONGEST_MESSAGE
    longest = _LONGEST_MESSAGE // len(texts) if is_long else _LONGEST_MESSAGE
    short: list[object] = [_ends_of(one, longest) if isinstance(one, str) else one for one in kept]
    if len(notes) > _MOST_NOTES:
        missing = sum(len(one) for one in notes[_MOST_NOTES:] if isinstance(one, str))
        short.append(f"[…{len(notes) - _MOST_NOTES} notes of {missing}{_LEFT_OUT}")
    return short


def _with_heading(shown: traceback.TracebackException, notes: list[object]) -> list[object]:
    """The notes below their heading; nothing where there are none, and the message cannot be mistaken for notes."""
    message = getattr(shown, "_str", None)
    if not notes and not (isinstance(message, str) and NOTES in message):
        return []
    return [NOTES, *(one.replace(NOTES, f" {NOTES}") if isinstance(one, str) else one for one in notes)]


def _ends_of(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Returns both ends of a long text, and the number of characters between them."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} […{len(text) - 2 * half}{_LEFT_OUT} {text[-half:]}"


def _user_frames(frames: list[traceback.FrameSummary], error: BaseException) -> list[traceback.FrameSummary]:
    """Returns the frames that matter to a user."""
    own = list(dropwhile(lambda frame: frame.filename.startswith(_MACHINERY), frames))
    if own and not own[-1].filename.startswith(_WRAPPERS):
        own = [frame for frame in own if not frame.filename.startswith(_WRAPPERS)]
    if any(not frame.filename.startswith(_LIBRARY) for frame in own):
        return own
    # Early Pythons 3.11 wrap what is raised within `except*` in a group without frames of the handler.
    return [] if isinstance(error, TorilError | BaseExceptionGroup) else frames
