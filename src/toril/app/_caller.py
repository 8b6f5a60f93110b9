"""The code of the application that called toril."""

from __future__ import annotations

import sys
from types import FrameType


def caller_frame() -> FrameType:
    """The nearest frame outside of toril."""
    frame = sys._getframe(1)  # there is no other way to ask for the caller
    while _is_own(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_own(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith("toril.") or module == "functools"
