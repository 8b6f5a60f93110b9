"""What went wrong, in our own words: Spark wraps an error of Python in pages of others.

Guarantee: the text is one line, and it is ours where the cause was one of our errors.
"""

from __future__ import annotations

import re
from typing import Final

from toril.errors import TorilError

# A line of a Python traceback that names one of our errors, of which the text is taken, or a lost race for a commit, of
# which the name stays: whoever reads it may try again.
_OURS: Final = re.compile(r"^\s*(?:toril(?:\.\w+)+: |[\w.]*(?=CommitFailedError: ))(.+)$", re.MULTILINE)


class PipelineFailed(TorilError):
    """A step of the pipeline ended with an error of Spark; the message holds its cause."""


def cause_of(error: object) -> str:
    """The last of our errors that is told in the text of another, or else its first line."""
    text = str(error)
    ours = _OURS.findall(text)
    return str(ours[-1]) if ours else text.strip().partition("\n")[0]
