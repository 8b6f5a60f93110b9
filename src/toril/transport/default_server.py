"""Which server is used: the one rule of library, command and Spark.

    redis= (--redis, option("url", …))  →  TORIL_REDIS_URL  →  the embedded server in ./.toril

Guarantee: the folder of the embedded server is resolved once in a process, when it is first needed, and stays the same
whatever the working directory is later; a forked child and the processes of handlers keep the folder of their parent.
Whoever gets the embedded server without having named it is told its whole path, once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from toril.errors import EmbeddedServerFailed, InvalidOption

VARIABLE: Final = "TORIL_REDIS_URL"
EMBEDDED: Final = "embedded:"

_logger = logging.getLogger("toril.transport")


@dataclass(slots=True)
class _Default:
    """What this process knows of the embedded server that nobody named."""

    folder: str | None = None
    warned: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def after_fork(self) -> None:
        self.lock = threading.Lock()  # a thread of the parent may have held it


_default = _Default()
os.register_at_fork(after_in_child=_default.after_fork)


def named_url(given: str | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The URL that was given, or that of the environment; None when no server is named."""
    return given if given is not None else environ.get(VARIABLE) or None


def chosen_url(given: str | None = None) -> str:
    """The URL of the server to use. The caller says which it is."""
    return named_url(given) or _embedded_url()


def default_url() -> str:
    """The URL of the embedded server that nobody named, after a warning, the first time, that it was chosen."""
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
    """The whole path of `./.toril`, resolved when this is called for the first time in this process."""
    from toril.server.folder import Folder  # only users of the default need it

    with _default.lock:
        if _default.folder is None:
            _default.folder = str(Folder.at(EMBEDDED).root)
        return _default.folder


def has_warned() -> bool:
    """Whether this process was told that it uses the embedded server without having named it."""
    return _default.warned


def inherit(folder: str, *, warned: bool = False) -> None:
    """Takes over the folder of another process: a child in another directory would not find it by itself."""
    with _default.lock:
        _default.folder = folder
        _default.warned = _default.warned or warned


def _embedded_url() -> str:
    _demand_binary()
    return f"{EMBEDDED}{default_folder()}"


def _demand_binary() -> None:
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
