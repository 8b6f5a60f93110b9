"""The supervisor: the process between the users of a folder and its server.

It is the server's parent, starts it again when it ends, counts the users by their open connections, and ends the
server and itself after the last of them. It runs in its own session.

Guarantee: the supervisor ends after its last user as soon as the server is shut down, and its server ends with it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from toril.server import _locks
from toril.server._control import PROTOCOL, LineReader, Message, encode
from toril.server._lifecycle import ServerLifecycle
from toril.server._settings import ServerSettings
from toril.server.folder import Folder

# The process that started the supervisor connects within milliseconds, unless it was killed. If it is later than this,
# it starts another supervisor.
_FIRST_USER_SECONDS = 3.0
# A predecessor may need the full time of a shutdown before it frees the lock.
_PREDECESSOR_SECONDS = 35.0
# Seconds after which a supervisor notices that its folder was deleted.
_FOLDER_CHECK_INTERVAL = 2.0


class Peer:
    """One connection: of a user, or for a single request."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number
        self.reader = LineReader()
        self.pid: int | None = None  # set when it has requested a lease
        self.wanted: ServerSettings | None = None  # what it waits for; None after the reply
        self.is_watching = False

    def send(self, message: Message) -> None:
        try:
            self.socket.sendall(encode(message))
        except OSError:
            return  # It has disconnected, or does not read; the next read on the connection shows which.


class Supervisor:
    """The loop over users, signals and the server's state, in one thread."""

    def __init__(
        self, folder: Folder, lifecycle: ServerLifecycle, listener: socket.socket, lock: int
    ) -> None:
        self._folder = folder
        self._lifecycle = lifecycle
        self._listener = listener
        self._lock = lock
        self._peers: dict[int, Peer] = {}
        self._count = 0
        self._selector = selectors.DefaultSelector()
        self._ending = False
        self._by_request = False
        self._idle_deadline = 0.0
        self._next_folder_check = time.monotonic() + _FOLDER_CHECK_INTERVAL

    def run(self) -> None:
        """Runs the server until its last user has disconnected, or a request or a signal stops it."""
        self._watch(self._listener, self._accept)
        self._lifecycle.start()
        # After the start, which may have waited for an earlier server to end.
        self._idle_deadline = time.monotonic() + _FIRST_USER_SECONDS
        while not self._ending:
            for key, _ in self._selector.select(self._select_timeout()):
                key.data()
            self._update()
        self._shut_down()

    def stop(self) -> None:
        """Makes `run` return after an orderly shutdown."""
        self._ending = True

    def wake_on(self, source: socket.socket) -> None:
        """Wakes the loop when `source` has bytes; signals write them."""
        self._watch(source, lambda: source.recv(4096))

    # --- each round --------------------------------------------------------------------------------------------

    def _select_timeout(self) -> float:
        now = time.monotonic()
        moments = (
            [self._next_folder_check] if self._users() else [self._next_folder_check, self._idle_deadline]
        )
        return max(0.0, min(min(moments) - now, self._lifecycle.seconds_to_next_check()))

    def _update(self) -> None:
        self._lifecycle.update()
        self._reply_to_waiting_users()
        if time.monotonic() >= self._next_folder_check:
            self._check_folder()
        if not self._users() and time.monotonic() >= self._idle_deadline:
            self._ending = True

    def _reply_to_waiting_users(self) -> None:
        for peer in self._users():
            reply = self._lifecycle.lease_reply(peer.wanted) if peer.wanted is not None else None
            if reply is not None:
                peer.wanted = None
                peer.send({**reply, "lease": peer.number})
            if reply is not None and "failed" in reply:
                self._drop(peer)

    def _check_folder(self) -> None:
        self._next_folder_check = time.monotonic() + _FOLDER_CHECK_INTERVAL
        self._ending = self._ending or not self._owns_folder()

    def _owns_folder(self) -> bool:
        return _locks.is_at(self._lock, self._folder.supervisor_lock)

    # --- connections -------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        self._count += 1
        peer = self._peers[self._count] = Peer(connection, self._count)
        self._watch(connection, lambda: self._read(peer))

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.socket.recv(65536)
            messages = peer.reader.feed(data)
        except OSError:
            return self._drop(peer)
        except ValueError as error:
            return self._reject(peer, f"the supervisor cannot read that: {error}")
        for message in messages:
            if peer.number in self._peers:
                self._handle_or_reject(peer, message)
        if not data:
            self._drop(peer)
        return None

    def _handle_or_reject(self, peer: Peer, message: Message) -> None:
        # Every process that may open the socket can send anything; it must not end the supervisor.
        try:
            self._handle(peer, message)
        except (KeyError, TypeError, ValueError) as error:
            self._reject(peer, f"the supervisor cannot read that: {error!r}")

    def _handle(self, peer: Peer, message: Message) -> None:
        if message.get("protocol") != PROTOCOL:
            return self._reject(peer, "the running server was started by another version of toril; stop it")
        match message.get("want"):
            case "lease":
                self._add_user(peer, message)
            case "status":
                peer.send(self._status())
            case "watch":
                peer.is_watching = True
                peer.send(self._status())
            case "unsaved":
                peer.send({"unsaved": self._lifecycle.unsaved_reason(), "users": len(self._users())})
            case "stop":
                self._ending = self._by_request = True
            case other:
                self._reject(peer, f"the supervisor does not know {other!r}")
        return None

    def _add_user(self, peer: Peer, message: Message) -> None:
        pid, wanted = int(message["pid"]), ServerSettings.from_message(message)
        peer.pid, peer.wanted = pid, wanted
        self._idle_deadline = 0.0
        self._notify_watchers()

    def _reject(self, peer: Peer, problem: str) -> None:
        peer.send({"failed": {"kind": "start", "problem": problem}})
        if peer.pid is None:
            self._drop(peer)  # A user stays connected, whatever it sends.

    def _drop(self, peer: Peer) -> None:
        if self._peers.pop(peer.number, None) is None:
            return
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.pid is not None:
            self._notify_watchers()

    def _notify_watchers(self) -> None:
        for peer in [peer for peer in self._peers.values() if peer.is_watching]:
            peer.send(self._status())

    def _users(self) -> list[Peer]:
        return [peer for peer in self._peers.values() if peer.pid is not None]

    def _status(self) -> Message:
        users = [{"lease": peer.number, "pid": peer.pid} for peer in self._users()]
        return {"status": {**self._lifecycle.facts(), "supervisor_pid": os.getpid(), "users": users}}

    def _watch(self, source: socket.socket, react: Callable[[], object]) -> None:
        self._selector.register(source, selectors.EVENT_READ, react)

    # --- shutdown ----------------------------------------------------------------------------------------------

    def _shut_down(self) -> None:
        # From here on the kernel refuses new users. They wait for the lock and start the next supervisor.
        self._listener.close()
        if self._by_request:
            for user in self._users():
                user.send({"stopping": True})
        if self._owns_folder():
            self._lifecycle.log_unsaved_data()
            self._lifecycle.stop()
            self._folder.control_socket.unlink(missing_ok=True)
            self._folder.clear_sockets()
        else:
            # The folder was deleted, and perhaps created again by another supervisor: the files there are not ours.
            self._lifecycle.kill()
        self._selector.close()
        for peer in self._peers.values():
            peer.socket.close()


def main(arguments: list[str]) -> int:
    """`FOLDER BINARY SETTINGS`. Forks the supervisor, and returns when users can connect."""
    folder, binary = Folder(Path(arguments[0])), Path(arguments[1])
    settings = ServerSettings.from_message(json.loads(arguments[2]))
    os.umask(0o077)
    lock = _locks.lock_within(folder.supervisor_lock, _PREDECESSOR_SECONDS)
    if lock is None:
        sys.stderr.write(
            f"the former supervisor (process {_locks.holder_of(folder.supervisor_lock)}) does not end"
        )
        return 1
    try:
        folder.prepare()  # Again, under the lock: a predecessor removes files when it ends.
        listener = listen(folder.control_socket)
    except OSError as error:
        sys.stderr.write(f"no socket can be opened at {folder.control_socket}: {error}")
        return 1
    if os.fork():
        return 0
    _become_daemon(folder, lock)
    _run_supervisor(folder, ServerLifecycle(folder, binary, settings), listener, lock)
    return 0


def listen(path: Path) -> socket.socket:
    """Returns a listener at `path`. Removes the socket of a killed predecessor; the caller holds the lock."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(128)
    return listener


def _become_daemon(folder: Folder, lock: int) -> None:
    os.setsid()  # Ctrl-C in the starter's terminal must not reach this process.
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    # Errors of the supervisor go to the log.
    log = os.open(folder.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for standard, target in enumerate((nothing, nothing, log)):
        os.dup2(target, standard)
    os.close(nothing)
    os.close(log)
    _locks.write_own_pid(lock)


def _run_supervisor(folder: Folder, lifecycle: ServerLifecycle, listener: socket.socket, lock: int) -> None:
    supervisor = Supervisor(folder, lifecycle, listener, lock)
    receiver, sender = socket.socketpair()
    for end in (receiver, sender):
        end.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # Its wake-up byte wakes the loop: the server has ended.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor.wake_on(receiver)
    supervisor.run()
