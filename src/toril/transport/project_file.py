"""The table `[tool.toril]` of pyproject.toml in the current directory: settings of a project.

Guarantee: a file that has not changed is read once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toril.errors import InvalidOption

FILE: Final = "pyproject.toml"


def project_table() -> Mapping[str, Any]:
    """The table; empty if there is none. Raises InvalidOption if the file cannot be read."""
    path = Path(FILE).absolute()
    try:
        status = path.stat()
    except OSError:
        return {}
    return _table(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _table(path: Path, _changed: int, _size: int) -> Mapping[str, Any]:
    import tomllib  # a process that has no such file does not need it

    try:
        tool = tomllib.loads(path.read_text()).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InvalidOption(str(path), f"cannot be read: {error}", "correct the file") from None
    table = tool.get("toril", {})
    if not isinstance(table, Mapping):
        raise InvalidOption(f"tool.toril in {path}", "is not a table", "write [tool.toril]")
    return table


def redis_from_file() -> str | None:
    """The server in the file."""
    redis = project_table().get("redis")
    if redis is not None and not isinstance(redis, str):
        raise InvalidOption(f"redis in {FILE}", f"is a {type(redis).__name__}", "write a URL as a string")
    return redis or None
