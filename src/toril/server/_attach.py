"""Connects a process to a folder's server as a user.

Guarantee: `attach` returns a connection that counts as a user when the server has answered PING, or raises an error
with the reason. The supervisor may run, start, end or be killed at that moment; of many processes that attach at once
exactly one starts it.
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
from toril.server._control import ControlConnection, Message
from toril.server._failures import from_os, from_supervisor
from toril.server._settings import ServerSettings
from toril.server.binary import server_binary
from toril.server.folder import Folder

# -I -S: nothing of the user's environment or start-up files runs in the supervisor, and it starts in half the time.
_INTERPRETER_FLAGS = ("-I", "-S")
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from toril.server._supervisor import main; sys.exit(main(sys.argv[2:]))"
)
_PACKAGE_ROOT = Path(__file__).parents[2]
# A supervisor may end with another user before it has our request, but hardly so often in a row.
_MOST_STARTS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """A user's connection, the number of its lease, and the facts about the server."""

    connection: ControlConnection
    number: int
    facts: dict[str, Any]


def attach(folder: Folder, settings: ServerSettings, seconds: float) -> Attachment:
    """Becomes a user; starts supervisor and server if they do not run."""
    attempt = _Attempt(folder, settings, time.monotonic() + seconds)
    if not folder.root.exists():
        server_binary()  # Raises if there is none, before the folder is created.
    try:
        folder.prepare()
        while (attached := attempt.request_lease(attempt.connect())) is None:
            time.sleep(0.005)  # That supervisor is ending; soon the next one can start.
    except TimeoutError:
        raise ServerNotReady(str(folder.root), seconds) from None
    except OSError as error:
        raise from_os(str(folder.root), error) from error
    return attached


def request(folder: Folder, message: Message, seconds: float) -> Message | None:
    """Returns the supervisor's reply to one message; None if there is no supervisor. Never starts one."""
    try:
        connection = ControlConnection.open(folder.control_socket)
    except OSError as error:
        raise from_os(str(folder.root), error) from error
    if connection is None:
        return None
    try:
        return connection.request(message, seconds)
    except TimeoutError:
        raise ServerNotReady(str(folder.root), seconds) from None
    finally:
        connection.close()


class _Attempt:
    """Requests a lease: it may have to start the supervisor, and to ask more than once."""

    def __init__(self, folder: Folder, settings: ServerSettings, deadline: float) -> None:
        self._folder = folder
        self._settings = settings
        self._deadline = deadline
        self._starts = 0
        self._stderr = ""  # of the last supervisor that was started, before it had a log

    def connect(self) -> ControlConnection:
        while (connection := ControlConnection.open(self._folder.control_socket)) is None:
            lock = _locks.try_lock(self._folder.start_lock)
            if lock is None:
                time.sleep(0.005)  # Another process is starting the supervisor.
            else:
                try:
                    self._start_supervisor_unless_running()
                finally:
                    os.close(lock)
            if time.monotonic() > self._deadline:
                raise TimeoutError
        return connection

    def request_lease(self, connection: ControlConnection) -> Attachment | None:
        try:
            message = {"want": "lease", "pid": os.getpid(), **self._settings.as_message()}
            answer = connection.request(message, self._deadline - time.monotonic())
        except BaseException:
            connection.close()
            raise
        if answer is not None and "ready" in answer:
            return Attachment(connection=connection, number=answer["lease"], facts=answer["ready"])
        connection.close()
        if answer is not None and "failed" in answer:
            raise from_supervisor(str(self._folder.root), answer["failed"])
        return None

    def _start_supervisor_unless_running(self) -> None:
        if (connection := ControlConnection.open(self._folder.control_socket)) is not None:
            connection.close()
            return
        if self._starts == _MOST_STARTS:
            self._folder.check_disk_space()
            problem = "the supervisor ends as soon as it is started"
            raise ServerStartFailed(str(self._folder.root), problem, self._stderr or self._folder.log_tail())
        self._starts += 1
        self._start_supervisor()

    def _start_supervisor(self) -> None:
        folder = self._folder
        command = [_interpreter(folder), *_INTERPRETER_FLAGS, "-c", _BOOT, str(_PACKAGE_ROOT)]
        arguments = [str(folder.root), str(server_binary()), json.dumps(self._settings.as_message())]
        try:
            started = subprocess.run(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in the terminal must not reach it while it starts.
                timeout=max(self._deadline - time.monotonic(), 0.001),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        self._stderr = started.stderr.decode(errors="replace")
        if started.returncode:
            raise ServerStartFailed(str(folder.root), "no supervisor could be started", self._stderr)


def _interpreter(folder: Folder) -> str:
    if not sys.executable:
        raise ServerStartFailed(
            str(folder.root), "this program has no Python interpreter to run the supervisor with"
        )
    return sys.executable
