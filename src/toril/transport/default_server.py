"""Which server is used, by the library, the command line and Spark.

    redis= (--redis, option("url", …))  →  TORIL_REDIS_URL  →  [tool.toril] redis in ./pyproject.toml  →
    the embedded server in ./.toril

Guarantee: the folder of the embedded server is resolved once in a process, when it is first needed, and stays the same
after a change of the working directory; a forked child and the processes of handlers keep the folder of their parent.
A process that uses the embedded server without naming it logs the absolute path, once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from toril.errors import EmbeddedServerFailed, InvalidOption
from toril.transport.project_file import redis_from_file

VARIABLE: Final = "TORIL_REDIS_URL"
EMBEDDED: Final = "embedded:"

_logger = logging.getLogger("toril.transport")


@dataclass(slots=True)
class _Default:
    """The state of the embedded server that is used by default."""

    folder: str | None = None
    warned: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def after_fork(self) -> None:
        self.lock = threading.Lock()  # a thread of the parent may hold it


_default = _Default()
os.register_at_fork(after_in_child=_default.after_fork)


def named_url(given: str | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the given URL, that of the environment or of pyproject.toml; None when no server is named."""
    return given if given is not None else environ.get(VARIABLE) or redis_from_file()


def chosen_url(given: str | None = None) -> str:
    """Returns the URL of the server to use, without the warning: the caller shows which it is."""
    return named_url(given) or _embedded_url()


def default_url() -> str:
    """Returns the URL of the default embedded server; logs a warning the first time."""
    url = _embedded_url()
    with _default.lock:
        first, _default.warned = not _default.warned, True
    if first:
        _logger.warning(
            "no server was named: using the embedded one in %s; programs that start in another directory do not see "
            "its queues. To choose a server, pass redis= or set %s",
            url.removeprefix(EMBEDDED),
            VARIABLE,
        )
    return url


def default_folder() -> str:
    """Returns the absolute path of `./.toril`, resolved by the first call in this process."""
    from toril.server.folder import Folder  # needed for the embedded server only

    with _default.lock:
        if _default.folder is None:
            _default.folder = str(Folder.at(EMBEDDED).root)
        return _default.folder


def has_warned() -> bool:
    """Whether this process has logged that it uses the embedded server by default."""
    return _default.warned


def inherit(folder: str, *, warned: bool = False) -> None:
    """Takes the folder of the parent process: a child may run in another directory."""
    with _default.lock:
        _default.folder = folder
        _default.warned = _default.warned or warned


def _embedded_url() -> str:
    _check_installed()
    return f"{EMBEDDED}{default_folder()}"


def _check_installed() -> None:
    from toril.server import server_binary

    try:
        server_binary()
    except EmbeddedServerFailed as missing:
        raise InvalidOption(
            "redis",
            "no server is named, and the embedded one is not installed",
            'pass redis="redis://host:6379" (--redis in the shell, option("url", …) in Spark), '
            f'set {VARIABLE}, or run `pip install "toril[server]"`',
        ) from missing
