"""Warnings about values that are allowed but probably not meant.

Guarantee: a warning points at the line of the user's code that led to it, however deep in toril it was noticed; it is
shown once for each such line, and can be filtered by module.
"""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Final

from toril.errors import OptionWarning

_LIBRARY: Final = f"{Path(__file__).parents[1]}/"


def warn_option(text: str) -> None:
    """Warns the caller of toril."""
    depth, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_back is not None and _is_library(frame.f_code.co_filename):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, OptionWarning, stacklevel=depth)


def _is_library(filename: str) -> bool:
    # The constructors of dataclasses are compiled from a string.
    return filename.startswith(_LIBRARY) or filename == "<string>"
