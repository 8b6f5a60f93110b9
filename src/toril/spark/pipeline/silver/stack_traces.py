"""The error message in a stack trace.

Guarantee: the message is the one that `failedReason` would hold for the same error, so that an error has one text
wherever it is found.
"""

from __future__ import annotations

import re
from typing import Final

_TRACEBACK: Final = "Traceback (most recent call last):"
_BEGINNING: Final = re.compile(
    rf"^{re.escape(_TRACEBACK)}\n", re.MULTILINE
)  # a line of its own, not part of a message
_FRAME: Final = re.compile(r"^[ \t]+at ", re.MULTILINE)  # of Node
_GROUP: Final = f"Exception Group {_TRACEBACK}"
_MARGIN: Final = re.compile(r"^ *[|+] ?", re.MULTILINE)  # what groups are drawn with
# `Error: text`, `TypeError [ERR_INVALID_URL]: text`, `package.module.Name: text`.
_NAMED: Final = re.compile(r"(?P<name>[A-Za-z_$][\w$.<>]*)(?: \[\w+\])?(?:: (?P<message>.*)|:?)", re.DOTALL)
# The message of these says nothing alone: `failedReason` holds their name, too.
_TELLING_NAMES: Final = frozenset(
    ("KeyError", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "CancelledError", "BaseExceptionGroup")
)


def message_of(trace: str) -> str:
    """Node writes it before the frames, Python after those of the last traceback."""
    said = _of_python(trace) if _is_of_python(trace) else trace[: _first_frame(trace)].removesuffix("\n")
    found = _NAMED.fullmatch(said)
    if found is None:
        return said
    name, message = found["name"].rpartition(".")[2], found["message"]
    return f"{name}: {message}" if message and name in _TELLING_NAMES else message or name


def _is_of_python(trace: str) -> bool:
    return _GROUP in trace or _BEGINNING.search(trace) is not None


def _first_frame(trace: str) -> int:
    frame = _FRAME.search(trace)
    return frame.start() if frame else len(trace)


def _of_python(trace: str) -> str:
    """All after the frames of the last traceback: frames are indented, the message is not."""
    rest = _of_group(trace) if _GROUP in trace else _BEGINNING.split(trace)[-1]
    lines = rest.removesuffix("\n").split("\n")  # other line breaks belong to the message
    first = next((at for at, line in enumerate(lines) if line.strip() and not line[0].isspace()), None)
    return trace.partition("\n")[0] if first is None else "\n".join(lines[first:])


def _of_group(trace: str) -> str:
    """The message of the group is between its frames and its first exception."""
    return _MARGIN.sub("", trace).partition(_GROUP)[2].partition("\n-+---")[0]
