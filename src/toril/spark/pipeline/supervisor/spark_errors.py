"""The cause of an error of Spark, which wraps an error of Python in pages of others.

Guarantee: the text is one line; if the cause was an error of toril, it is that error's text.
"""

from __future__ import annotations

import os
import re
from typing import Final

# A line of a Python traceback that names one of our errors, of which the text is taken, or a lost race for a commit, of
# which the name stays: whoever reads it may try again.
_OURS: Final = re.compile(r"^[ \t]*(?:toril(?:\.\w+)+: |[\w.]*(?=CommitFailedError: ))(.+)$", re.MULTILINE)
_NO_TORIL: Final = re.compile(
    r"ModuleNotFoundError: (No module named 'toril\b|the Python of Spark's workers, (\S+ on \S+),)"
)


def cause_of(error: object) -> str:
    """The last error of toril in the text of another error, or else its first line."""
    text = str(error)
    if lacking := _NO_TORIL.search(text):
        return _without_toril(lacking[2])
    ours = _OURS.findall(text)
    return str(ours[-1]) if ours else text.strip().partition("\n")[0]


def _without_toril(place: str | None) -> str:
    found = place or os.environ.get("PYSPARK_PYTHON", "python3 of their PATH")
    return (
        f"the Python of Spark's workers ({found}) lacks toril; install toril[spark] for it, or set PYSPARK_PYTHON to "
        "one that has it"
    )


def is_spark_error(error: Exception) -> bool:
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException)
