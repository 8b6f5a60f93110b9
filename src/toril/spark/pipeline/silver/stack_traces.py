"""The error message in a stack trace.

Guarantee: the message is the one that `failedReason` would hold for the same error, so that an error has one text
wherever it is found. None when the trace does not hold it any more.

Node writes `name: message` and then frames. Lines of a message may look like frames: the frames are the last run of
them. Python writes frames and then `name: message`; toril writes notes under a heading (`protocol/stack_trace.py`).
What a trace cannot tell alone is learned from another one of the same job whose message is known: see `Sample`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from toril.protocol.stack_trace import NOTES, was_shortened

# --- Node -------------------------------------------------------------------------------------------------------------

# How a frame of V8 ends: `    at name (file:1:2)`, `    at file:1:2`, `    at async Promise.all (index 0)`.
_PLACE: Final = re.compile(r"(?::\d+|:0x[0-9a-f]+|<anonymous>|\(index \d+|unknown location|[ (]native)\)?\Z")
_LONGEST_PLACE: Final = 40  # characters of a line that are looked at for it
_SOURCE_MAP, _BLUEBIRD = "        -> ", "From previous event:"  # lines that others write among frames
# The place in a file with a syntax error, which Node writes before the error.
_SOURCE: Final = re.compile(r".+:\d+\n.*\n[ \t]*\^+\n\n")

# --- Python -----------------------------------------------------------------------------------------------------------

_TRACEBACK: Final = "Traceback (most recent call last):\n"
_TRACEBACK_LINE: Final = re.compile(rf"^(?=\S).*{re.escape(_TRACEBACK)}", re.MULTILINE)
_GROUP_TRACEBACK: Final = f"Exception Group {_TRACEBACK}"
_GROUP: Final = ("  + ", "  | ")  # how it begins, with frames and without
_MARGIN: Final = re.compile(r"^ *[|+] ?", re.MULTILINE)  # what groups are drawn with
_NEXT_ERROR: Final = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
    rf"(?={re.escape(_TRACEBACK)}|  [+|] |[^\W\d][\w.]*(?:: |\n))"  # an error may have no frames
)
_SYNTAX_ERRORS: Final = frozenset(("SyntaxError", "IndentationError", "TabError"))
_SYNTAX_PLACE: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+)$', re.MULTILINE)
# Since 3.12 Python appends it to the message of an unknown name.
_SUGGESTION: Final = re.compile(
    r"\. Did you (?:mean: '[^'\n]*'|forget to import '[^'\n]*')\?(?: Or did you forget to import '[^'\n]*'\?)?\Z"
)
_UNKNOWN_NAMES: Final = frozenset(
    ("NameError", "UnboundLocalError", "AttributeError", "ImportError", "ModuleNotFoundError")
)
# The message of these says nothing alone: `failedReason` holds their name, too.
_TELLING_NAMES: Final = frozenset(
    ("KeyError", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError", "BaseExceptionGroup")
)

# --- both -------------------------------------------------------------------------------------------------------------

# `Error: text`, `TypeError [ERR_INVALID_URL]: text`, `package.module.Name: text`, `My Service Error: text`.
_NAMED: Final = re.compile(
    r"(?P<name>[A-Za-z_$][\w$.<>]*|[A-Za-z_$][\w$. -]*(?:Error|Exception))(?: \[\w+\])?(?:: (?P<message>.*)|:?)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What surrounds the message of a trace whose message is known: other traces of the job are like it."""

    before: str  # the name and its colon
    after: str  # frames of Node, notes of Python

    @classmethod
    def of(cls, trace: str, message: str | None) -> Sample | None:
        """None when the trace can be read without help, or is not of this message."""
        if not message or message_of(trace) == message:
            return None
        before, found, after = _relevant(trace).partition(f": {message}")
        fits = found and "\n" not in before and (not after or after.startswith("\n"))
        return cls(f"{before}: ", after) if fits else None

    def message_of(self, trace: str) -> str | None:
        """The message of another trace; None when it is not like this one."""
        text = _relevant(trace)
        if not text.startswith(self.before) or not text.endswith(self.after):
            return None
        return text[len(self.before) : len(text) - len(self.after)]


def message_of(trace: str, sample: Sample | None = None) -> str | None:
    """The message of an error whose stack trace this is."""
    if sample is not None and (found := sample.message_of(trace)) is not None:
        return found
    return _message_of_python(trace) if _is_of_python(trace) else _message_of_node(trace)


def _relevant(trace: str) -> str:
    """The part of a trace that begins with the name of the error."""
    return _after_frames(_last_error(trace)) if _is_of_python(trace) else _without_source(trace)


# --- Node -------------------------------------------------------------------------------------------------------------


def _message_of_node(trace: str) -> str:
    """An error without a message is its name alone."""
    said = _without_frames(_without_source(trace))
    named = _NAMED.fullmatch(said)
    return said if named is None else named["message"] or ""


def _without_source(trace: str) -> str:
    place = _SOURCE.match(trace)
    return trace[place.end() :] if place else trace


def _without_frames(trace: str) -> str:
    lines = trace.removesuffix("\n").split("\n")
    end = len(lines)
    while end > 1 and _is_frame(lines[end - 1]):
        end -= 1
    return trace if end == len(lines) else "\n".join(lines[:end])


def _is_frame(line: str) -> bool:
    if line.startswith("    at "):
        return _PLACE.search(line[-_LONGEST_PLACE:]) is not None
    return line.startswith(_SOURCE_MAP) or line == _BLUEBIRD


# --- Python -----------------------------------------------------------------------------------------------------------


def _is_of_python(trace: str) -> bool:
    """Only Python ends its last line; a trace without frames begins with the name of the error."""
    began = trace.startswith((_TRACEBACK, *_GROUP)) or was_shortened(trace)
    return began or (trace.endswith("\n") and _without_frames(trace) == trace)


def _message_of_python(trace: str) -> str | None:
    error = _last_error(trace)
    if _is_ambiguous(trace) or (was_shortened(error) and error.endswith("---\n")):
        return None  # the message of a group is before the errors in it, which were kept
    said = _without_notes(_after_frames(error))
    named = _NAMED.fullmatch(said)
    if named is None:
        return said
    name, message = named["name"].rpartition(".")[2], named["message"]
    return _full_message(error, name, message) if message else name


def _last_error(trace: str) -> str:
    """The error itself, after its causes and contexts."""
    return _NEXT_ERROR.split(trace)[-1]


def _is_ambiguous(trace: str) -> bool:
    """Whether what follows may be part of a message that is itself the trace of an error and of its cause."""
    before = _NEXT_ERROR.split(trace)[:-1]
    return any(found.start() for error in before for found in _TRACEBACK_LINE.finditer(error))


def _after_frames(error: str) -> str:
    """Frames are indented, the message is not."""
    text = _without_exceptions(error) if error.startswith(_GROUP) else error
    if was_shortened(error) or text.startswith((_TRACEBACK, _GROUP_TRACEBACK)):
        text = text.partition("\n")[2]
    lines = text.removesuffix("\n").split("\n")  # other line breaks belong to the message
    first = next((at for at, line in enumerate(lines) if line.strip() and not line[0].isspace()), None)
    return error.partition("\n")[0] if first is None else "\n".join(lines[first:])


def _without_exceptions(group: str) -> str:
    return _MARGIN.sub("", group).partition("\n-+---")[0]


def _without_notes(said: str) -> str:
    message, heading, _ = f"{said}\n".rpartition(f"\n{NOTES}\n")
    return message if heading else said


def _full_message(error: str, name: str, message: str) -> str:
    """The message with what Python's own `str` of the error has before or after it."""
    if name in _TELLING_NAMES:
        return f"{name}: {message}"
    if name in _UNKNOWN_NAMES:
        return _SUGGESTION.sub("", message)
    place = list(_SYNTAX_PLACE.finditer(error)) if name in _SYNTAX_ERRORS else []
    return (
        f"{message} ({PurePosixPath(place[-1]['file']).name}, line {place[-1]['line']})" if place else message
    )
