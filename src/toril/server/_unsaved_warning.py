"""The log entry before a server ends that cannot write its append-only file.

Guarantee: if the end of a server loses data, the process that ends it logs an error that names what is lost and what
is safe.
"""

from __future__ import annotations

import logging

from toril.server._attach import request
from toril.server.folder import Folder

_log = logging.getLogger("toril.server")

# The supervisor asks the server, which may be busy. The end of a program must not wait long for a warning.
_TIMEOUT = 2.0


def warn_about_unsaved_data(folder: Folder, last_users: int | None = None) -> None:
    """Logs an error if the server is about to end and would lose data; it does not end with more than `last_users`."""
    answer = request(folder, {"want": "unsaved"}, _TIMEOUT) or {}
    problem, users = answer.get("unsaved"), int(answer.get("users", 0))
    if problem is not None and (last_users is None or users <= last_users):
        _log.error(
            "the server in %s ends and cannot write its append-only file (%s): what was added since it failed is lost, "
            "unless disk space is freed at once; what was written before is safe in %s",
            folder.root,
            problem,
            folder.data,
        )
