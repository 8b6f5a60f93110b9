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

from toril.errors import ServerNotReady, ServerStartFailed
from toril.server import _locks
from toril.server._binary import server_binary
from toril.server._control import Conversation, Message
from toril.server._failures import from_os, from_supervisor
from toril.server._folder import Folder
from toril.server._settings import ServerSettings

# -I -S: nothing of the user's environment or start-up files runs in the keeper, and it starts in half the time.
_INTERPRETER_FLAGS = ("-I", "-S")
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from toril.server._supervisor import main; sys.exit(main(sys.argv[2:]))"
)
_PACKAGE_ROOT = Path(__file__).parents[2]
# A keeper that we started may end with another user before it hears us, but hardly so often in a row.
_MOST_STARTS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """A user's connection, its number among the keeper's leases, and what the keeper said of the server."""

    conversation: Conversation
    number: int
    facts: dict[str, Any]


def join(folder: Folder, settings: ServerSettings, seconds: float) -> Attached:
    """Becomes a user; starts keeper and server if need be."""
    attempt = _Attempt(folder, settings, time.monotonic() + seconds)
    if not folder.root.exists():
        server_binary()  # Without one nothing is created.
    try:
        folder.prepare()
        while (joined := attempt.ask_for_lease(attempt.reach_keeper())) is None:
            time.sleep(0.005)  # That keeper was on its way out; a moment later the next one can start.
    except TimeoutError:
        raise ServerNotReady(str(folder.root), seconds) from None
    except OSError as error:
        raise from_os(str(folder.root), error) from error
    return joined


def ask(folder: Folder, message: Message, seconds: float) -> Message | None:
    """The answer of the folder's keeper to one question; None if there is no keeper. Never starts one."""
    try:
        conversation = Conversation.open(folder.keeper_socket)
    except OSError as error:
        raise from_os(str(folder.root), error) from error
    if conversation is None:
        return None
    try:
        return conversation.ask(message, seconds)
    except TimeoutError:
        raise ServerNotReady(str(folder.root), seconds) from None
    finally:
        conversation.close()


class _Attempt:
    """One process on its way to a lease: it may have to start the keeper, and to ask more than once."""

    def __init__(self, folder: Folder, settings: ServerSettings, deadline: float) -> None:
        self._folder = folder
        self._settings = settings
        self._deadline = deadline
        self._starts = 0
        self._said = ""  # by the last keeper that we started, before it had a log

    def reach_keeper(self) -> Conversation:
        while (conversation := Conversation.open(self._folder.keeper_socket)) is None:
            lock = _locks.try_lock(self._folder.start_lock)
            if lock is None:
                time.sleep(0.005)  # Another process is starting the keeper.
            else:
                try:
                    self._start_keeper_unless_there()
                finally:
                    os.close(lock)
            if time.monotonic() > self._deadline:
                raise TimeoutError
        return conversation

    def ask_for_lease(self, conversation: Conversation) -> Attached | None:
        try:
            request = {"want": "lease", "pid": os.getpid(), **self._settings.as_message()}
            answer = conversation.ask(request, self._deadline - time.monotonic())
        except BaseException:
            conversation.close()
            raise
        if answer is not None and "ready" in answer:
            return Attached(conversation=conversation, number=answer["lease"], facts=answer["ready"])
        conversation.close()
        if answer is not None and "failed" in answer:
            raise from_supervisor(str(self._folder.root), answer["failed"])
        return None

    def _start_keeper_unless_there(self) -> None:
        if (conversation := Conversation.open(self._folder.keeper_socket)) is not None:
            conversation.close()
            return
        if self._starts == _MOST_STARTS:
            self._folder.demand_room()
            problem = "the keeper ends as soon as it is started"
            raise ServerStartFailed(str(self._folder.root), problem, self._said or self._folder.log_tail())
        self._starts += 1
        self._start_keeper()

    def _start_keeper(self) -> None:
        folder = self._folder
        command = [_interpreter(folder), *_INTERPRETER_FLAGS, "-c", _BOOT, str(_PACKAGE_ROOT)]
        arguments = [str(folder.root), str(server_binary()), json.dumps(self._settings.as_message())]
        try:
            started = subprocess.run(  # noqa: S603 - our interpreter, our code
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in our terminal must not reach it half started.
                timeout=max(self._deadline - time.monotonic(), 0.001),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        self._said = started.stderr.decode(errors="replace")
        if started.returncode:
            raise ServerStartFailed(str(folder.root), "no keeper could be started", self._said)


def _interpreter(folder: Folder) -> str:
    if not sys.executable:
        raise ServerStartFailed(
            str(folder.root), "this program has no Python interpreter to run the keeper with"
        )
    return sys.executable
