"""The server's process, as its parent sees it.

Guarantee: at most one server writes a folder's data (it holds a lock that it inherits), it dies with its parent, and
it is asked to write and fsync everything before it is made to end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from toril.server import _locks, _resp
from toril.server._binary import server_environment
from toril.server._folder import Folder, size_of
from toril.server._settings import ServerSettings

# A healthy server without replicas is down in milliseconds; a slow disk may need seconds for its last fsync.
_SHUTDOWN_GRACE = 10.0
# A server whose keeper was killed gets SIGTERM from the kernel at that moment: it had time to write already.
_LEFTOVER_GRACE = 3.0
_PR_SET_PDEATHSIG = 1
_LOG_LIMIT = 5_000_000  # bytes; the log of a long-lived folder must not grow for ever


class FolderBusy(Exception):
    """A server that is not ours still holds the folder and cannot be ended."""


class ServerProcess:
    """Starts, asks and ends the one server of a folder. To be used from the thread that starts it."""

    def __init__(self, folder: Folder, binary: Path) -> None:
        self._folder = folder
        self._binary = binary
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._parent = os.getpid()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def spawn(self, settings: ServerSettings) -> None:
        """Starts the server; it is not ready yet. Raises FolderBusy, or OSError when it cannot be executed."""
        lock = self._take_data()
        try:
            self._trim_log()
            self._child = self._popen(settings, lock)
            _locks.write_pid(lock, self._child.pid)
        finally:
            os.close(
                lock
            )  # The server has its own copy, and from now on it alone decides how long it is held.

    def ended(self) -> int | None:
        """The exit code, or None while the server lives."""
        return self._child.poll() if self._child else None

    def is_ready(self) -> bool:
        return _resp.is_ready(self._folder.server_socket)

    def version(self) -> str:
        """The server's own word on what it is."""
        fields = _resp.info(self._folder.server_socket, "server")
        return fields.get("valkey_version") or fields.get("redis_version", "unknown")

    def configure(self, name: str, value: str) -> None:
        """Changes a setting of the running server. Raises `_resp.ErrorReply`."""
        _resp.call(self._folder.server_socket, "CONFIG", "SET", name, value)

    def shut_down(self) -> None:
        """Ends the server: with SHUTDOWN or SIGTERM, which fsync; by force if it does not obey."""
        if self._child is None or self._child.poll() is not None:
            return  # Whoever answers at our address now is not ours.
        for ask in (self._ask_to_end, self._child.kill):
            ask()
            if self._wait(_SHUTDOWN_GRACE):
                return

    def kill(self) -> None:
        """Ends the server without a word; for data that is gone anyway."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def log_tail(self) -> str:
        """The last lines that this run of the server wrote."""
        return self._folder.log_tail(self._log_start)

    def _popen(self, settings: ServerSettings, lock: int) -> subprocess.Popen[bytes]:
        self._log_start = size_of(self._folder.log)
        self._parent = os.getpid()
        return subprocess.Popen(  # noqa: S603 - our binary, our arguments
            [str(self._binary), *settings.arguments(), *self._places()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.data,
            env=server_environment(),
            pass_fds=(lock,),
            process_group=0,  # One group with the processes that rewrite its file, so that they can end together.
            preexec_fn=self._die_with_parent,  # noqa: PLW1509 - the keeper has no other threads
        )

    def _places(self) -> list[str]:
        folder = self._folder
        return [
            *("--dir", str(folder.data)),
            *("--unixsocket", str(folder.server_socket)),
            *("--unixsocketperm", "700"),
            *("--logfile", str(folder.log)),
        ]

    def _die_with_parent(self) -> None:
        # SIGTERM and not SIGKILL: the server still writes what it has buffered. Elsewhere than on Linux a killed
        # keeper leaves its server behind until the next one takes the folder over.
        if self._libc is not None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != self._parent:  # The keeper died before the line above.
                os._exit(1)

    def _take_data(self) -> int:
        lock = _locks.lock_within(self._folder.server_lock, _LEFTOVER_GRACE)
        if lock is None:
            self._end_leftover()
            lock = _locks.lock_within(self._folder.server_lock, _LEFTOVER_GRACE)
        if lock is None:
            raise FolderBusy(f"another server (process {self._leftover()}) writes to this folder")
        return lock

    def _leftover(self) -> int | None:
        return _locks.holder_of(self._folder.server_lock)

    def _end_leftover(self) -> None:
        pid = self._leftover()
        if pid is None:
            return
        for victim in _group_of_server(pid):
            try:
                os.kill(victim, signal.SIGKILL)
            except OSError:
                continue  # Gone meanwhile, or not ours: the lock will tell.

    def _ask_to_end(self) -> None:
        try:
            _resp.call(self._folder.server_socket, "SHUTDOWN")
        except (FileNotFoundError, ConnectionRefusedError, TimeoutError, _resp.ErrorReply):
            self._running().terminate()  # It does not listen yet, is busy, or refuses.
        except OSError:
            return  # It hung up: that is how it agrees.

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
    """A TCP port on loopback that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _group_of_server(leader: int) -> list[int]:
    """The server `leader` and the processes that it forked; empty if the number belongs to something else by now."""
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
