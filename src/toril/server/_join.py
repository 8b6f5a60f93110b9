"""How a process becomes a user of a folder's server.

Guarantee: `join` returns with a connection that counts as a user and a server that has answered PING, or raises an
error that says why not. Whether the keeper runs, starts, ends or was killed at that moment makes no difference, and
of many that arrive at once exactly one starts it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toril.server import _locks
from toril.server._binary import server_binary
from toril.server._control import Conversation, Message
from toril.server._folder import Folder
from toril.server._settings import ServerSettings
from toril.server.errors import FolderUnusable, ServerNotReady, ServerStartFailed, from_keeper

# -I -S: nothing of the user's environment or start-up files runs in the keeper, and it starts in half the time.
_INTERPRETER_FLAGS = ("-I", "-S")
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from toril.server._keeper import main; sys.exit(main(sys.argv[2:]))"
)
_PACKAGE_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """A user's connection, its number among the keeper's leases, and what the keeper said of the server."""

    conversation: Conversation
    number: int
    facts: dict[str, Any]


def join(folder: Folder, settings: ServerSettings, seconds: float) -> Joined:
    """Becomes a user; starts keeper and server if need be."""
    deadline = time.monotonic() + seconds
    try:
        folder.prepare()
        while (joined := _try_to_join(folder, settings, deadline)) is None:
            time.sleep(0.005)  # That keeper was on its way out; a moment later the next one can start.
    except TimeoutError:
        raise ServerNotReady(str(folder.root), seconds) from None
    except OSError as error:
        raise FolderUnusable(str(folder.root), str(error)) from error
    return joined


def ask(folder: Folder, message: Message, seconds: float) -> Message | None:
    """The answer of the folder's keeper to one question; None if there is no keeper. Never starts one."""
    try:
        conversation = Conversation.open(folder.keeper_socket)
    except OSError as error:
        raise FolderUnusable(str(folder.root), str(error)) from error
    if conversation is None:
        return None
    try:
        return conversation.ask(message, seconds)
    except TimeoutError:
        raise ServerNotReady(str(folder.root), seconds) from None
    finally:
        conversation.close()


def _try_to_join(folder: Folder, settings: ServerSettings, deadline: float) -> Joined | None:
    conversation = _reach_keeper(folder, settings, deadline)
    try:
        request = {"want": "lease", "pid": os.getpid(), **settings.as_message()}
        answer = conversation.ask(request, deadline - time.monotonic())
    except BaseException:
        conversation.close()
        raise
    if answer is not None and "ready" in answer:
        return Joined(conversation=conversation, number=answer["lease"], facts=answer["ready"])
    conversation.close()
    if answer is not None and "failed" in answer:
        raise from_keeper(str(folder.root), answer["failed"])
    return None


def _reach_keeper(folder: Folder, settings: ServerSettings, deadline: float) -> Conversation:
    while (conversation := Conversation.open(folder.keeper_socket)) is None:
        lock = _locks.try_lock(folder.start_lock)
        if lock is None:
            time.sleep(0.005)  # Another process is starting the keeper.
        else:
            try:
                _start_keeper_unless_there(folder, settings, deadline)
            finally:
                os.close(lock)
        if time.monotonic() > deadline:
            raise TimeoutError
    return conversation


def _start_keeper_unless_there(folder: Folder, settings: ServerSettings, deadline: float) -> None:
    if (conversation := Conversation.open(folder.keeper_socket)) is not None:
        conversation.close()
        return
    command = [_interpreter(folder), *_INTERPRETER_FLAGS, "-c", _BOOT, str(_PACKAGE_ROOT)]
    arguments = [str(folder.root), str(server_binary()), json.dumps(settings.as_message())]
    try:
        started = subprocess.run(  # noqa: S603 - our interpreter, our code
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in our terminal must not reach it half started.
            timeout=max(deadline - time.monotonic(), 0.001),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    if started.returncode:
        raise ServerStartFailed(
            str(folder.root), "no keeper could be started", started.stderr.decode(errors="replace")
        )


def _interpreter(folder: Folder) -> str:
    if not sys.executable:
        raise ServerStartFailed(
            str(folder.root), "this program has no Python interpreter to run the keeper with"
        )
    return sys.executable
