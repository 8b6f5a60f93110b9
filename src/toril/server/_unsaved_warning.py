"""What is said before a server ends that cannot write its file.

Guarantee: an end that loses something is never silent; whoever ends the server finds in the log what is lost and what
is safe.
"""

from __future__ import annotations

import logging

from toril.server._attach import ask
from toril.server._folder import Folder

_log = logging.getLogger("toril.server")

# The keeper asks the server in turn, which may be busy; nobody should wait long for a warning.
_PATIENCE = 2.0


def warn_about_unsaved_data(folder: Folder, last_users: int | None = None) -> None:
    """Logs an error when the end of the server would lose something; with more than `last_users` it goes on anyway."""
    answer = ask(folder, {"want": "farewell"}, _PATIENCE) or {}
    problem, users = answer.get("unsaved"), int(answer.get("users", 0))
    if problem is not None and (last_users is None or users <= last_users):
        _log.error(
            "the server in %s ends and cannot write its append-only file (%s): what was added since it failed is lost, "
            "unless there is room at once; what was written before is safe in %s",
            folder.root,
            problem,
            folder.data,
        )
