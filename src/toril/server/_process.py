"""The server process: start, requests, end.

Guarantee: at most one server writes a folder's data (it holds a lock that it inherits), it ends with its parent, and
it gets time to write and fsync everything before it is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from toril.server import _locks, _resp
from toril.server._settings import ServerSettings
from toril.server.binary import server_environment
from toril.server.folder import Folder, size_of

# A server without replicas ends in milliseconds; on a slow disk its last fsync may take seconds.
_SHUTDOWN_SECONDS = 10.0
# A server whose supervisor was killed gets SIGTERM from the kernel at once: it has had time to write.
_LEFTOVER_SECONDS = 3.0
_PR_SET_PDEATHSIG = 1
_LOG_LIMIT = 5_000_000  # bytes, after which a new log begins at the next start


class FolderBusy(Exception):
    """Another server has the folder locked and cannot be ended."""


class ServerProcess:
    """Starts, configures and ends the server of a folder. Used from the thread that starts it."""

    def __init__(self, folder: Folder, binary: Path) -> None:
        self._folder = folder
        self._binary = binary
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._password: str | None = None  # that the running server requires
        self._parent = os.getpid()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def place(self) -> _resp.Place:
        """Where the server answers."""
        return _resp.Place(self._folder.server_socket, self._password)

    def spawn(self, settings: ServerSettings) -> None:
        """Starts the server; it is not ready yet. Raises FolderBusy, or OSError when it cannot be executed."""
        lock = self._lock_data()
        try:
            self._trim_log()
            os.close(self._folder.open_log())  # The server appends to it: it must be ours.
            if settings.port is not None:
                self._folder.create_password()
            self._password = self._folder.password
            self._child = self._popen(settings, lock)
            self._send_password()
            _locks.write_pid(lock, self._child.pid)
        finally:
            os.close(lock)  # The server has inherited it and holds it until it ends.

    def exit_code(self) -> int | None:
        """Returns the exit code, or None while the server runs."""
        return self._child.poll() if self._child else None

    def is_ready(self) -> bool:
        return _resp.is_ready(self.place)

    def version(self) -> str:
        """Returns the version that the server reports."""
        fields = _resp.info(self.place, "server")
        return fields.get("valkey_version") or fields.get("redis_version", "unknown")

    def configure(self, name: str, value: str) -> None:
        """Changes a setting of the running server. Raises `_resp.ErrorReply`."""
        _resp.call(self.place, "CONFIG", "SET", name, value)

    def require_password(self) -> None:
        """Makes the running server require the password of the folder, before it gets a TCP port."""
        self._folder.create_password()
        password = self._folder.password
        if password is not None and password != self._password:
            self.configure("requirepass", password)
            self._password = password

    def shut_down(self) -> None:
        """Ends the server: with SHUTDOWN or SIGTERM, which fsync; with SIGKILL if it does not end."""
        if self._child is None or self._child.poll() is not None:
            return  # A server that answers at this address now is another one.
        for end in (self._request_shutdown, self._child.kill):
            end()
            if self._wait(_SHUTDOWN_SECONDS):
                return

    def kill(self) -> None:
        """Kills the server: for a folder that was deleted."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def log_tail(self) -> str:
        """Returns the last log lines of this run of the server."""
        return self._folder.log_tail(self._log_start)

    def _popen(self, settings: ServerSettings, lock: int) -> subprocess.Popen[bytes]:
        self._log_start = size_of(self._folder.log)
        self._parent = os.getpid()
        return subprocess.Popen(
            # `-` reads more settings from standard input: other users can read the arguments of a process.
            [str(self._binary), *settings.arguments(), *self._path_arguments(), "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.data,
            env=server_environment(),
            pass_fds=(lock,),
            process_group=0,  # One group with the processes that rewrite its file, so that they can end together.
            preexec_fn=self._end_with_parent,  # noqa: PLW1509 - the supervisor has no other threads
        )

    def _send_password(self) -> None:
        stdin = self._running().stdin
        if stdin is not None:
            with suppress(BrokenPipeError), stdin:  # It has ended already; its exit code is reported.
                stdin.write(f'requirepass "{self._password}"\n'.encode() if self._password else b"")

    def _path_arguments(self) -> list[str]:
        folder = self._folder
        return [
            *("--dir", str(folder.data)),
            *("--unixsocket", str(folder.server_socket)),
            *("--unixsocketperm", "700"),
            *("--logfile", str(folder.log)),
        ]

    def _end_with_parent(self) -> None:
        # SIGTERM and not SIGKILL: the server still writes what it has buffered. On other systems than Linux the
        # server of a killed supervisor runs until the next supervisor of the folder ends it.
        if self._libc is not None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != self._parent:  # The supervisor ended before the line above.
                os._exit(1)

    def _lock_data(self) -> int:
        lock = _locks.lock_within(self._folder.server_lock, _LEFTOVER_SECONDS)
        if lock is None:
            self._end_leftover()
            lock = _locks.lock_within(self._folder.server_lock, _LEFTOVER_SECONDS)
        if lock is None:
            raise FolderBusy(f"another server (process {self._leftover()}) writes to this folder")
        return lock

    def _leftover(self) -> int | None:
        return _locks.holder_of(self._folder.server_lock)

    def _end_leftover(self) -> None:
        pid = self._leftover()
        if pid is None:
            return
        for process_id in _processes_of_server(pid):
            try:
                os.kill(process_id, signal.SIGKILL)
            except OSError:
                continue  # It has ended, or belongs to another user: the lock shows which.

    def _request_shutdown(self) -> None:
        try:
            _resp.call(self.place, "SHUTDOWN")
        except (FileNotFoundError, ConnectionRefusedError, TimeoutError, _resp.ErrorReply):
            self._running().terminate()  # It does not listen yet, is busy, or refuses.
        except OSError:
            return  # It closed the connection: it is shutting down.

    def _wait(self, seconds: float) -> bool:
        try:
            self._running().wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise RuntimeError("the server was not started: call spawn() first")
        return self._child

    def _trim_log(self) -> None:
        log = self._folder.log
        if size_of(log) > _LOG_LIMIT:
            log.replace(log.with_suffix(".log.old"))


def free_port() -> int:
    """Returns a TCP port on loopback that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _processes_of_server(leader: int) -> list[int]:
    """Returns the server `leader` and the processes that it forked; empty if the id belongs to another program now."""
    candidates = [leader, *(int(entry.name) for entry in Path("/proc").glob("[0-9]*"))]
    return sorted({pid for pid in candidates if _is_server(pid) and _group(pid) == leader})


def _is_server(pid: int) -> bool:
    try:
        return b"valkey" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None
