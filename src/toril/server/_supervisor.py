"""The keeper: the small process between the users of a folder and its server.

It is the server's parent, starts it again when it dies, counts the users by their open connections, and ends the
server and itself with the last of them. It belongs to no user: it lives in a session of its own.

Guarantee: the keeper never outlives its last user by more than a shutdown, and its server never outlives it.
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
from toril.server._folder import Folder
from toril.server._lifecycle import ServerLifecycle
from toril.server._settings import ServerSettings

# Whoever started the keeper connects within milliseconds; if it was killed in between, nobody will. Should it be
# later than that, it finds nobody and starts another.
_FIRST_USER_GRACE = 3.0
# A predecessor may need its full shutdown grace before it lets go.
_PREDECESSOR_GRACE = 35.0
# How soon a keeper notices that its folder was deleted under it.
_LOOK_INTERVAL = 2.0


class Peer:
    """One connection, of a user or of somebody who only asks."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number
        self.reader = LineReader()
        self.pid: int | None = None  # set once it has asked for a lease
        self.wanted: ServerSettings | None = None  # what it waits for; None when it was answered
        self.watches = False

    def send(self, message: Message) -> None:
        try:
            self.socket.sendall(encode(message))
        except OSError:
            return  # It is gone, or reads nothing; the next read on the connection shows which.


class Supervisor:
    """The loop over users, signals and the server's state. Everything happens in one thread."""

    def __init__(self, folder: Folder, upkeep: ServerLifecycle, listener: socket.socket, lock: int) -> None:
        self._folder = folder
        self._upkeep = upkeep
        self._listener = listener
        self._lock = lock
        self._peers: dict[int, Peer] = {}
        self._count = 0
        self._selector = selectors.DefaultSelector()
        self._ending = False
        self._by_request = False
        self._leave_alone_until = 0.0
        self._next_look = time.monotonic() + _LOOK_INTERVAL

    def run(self) -> None:
        """Keeps the server until its last user has left, somebody asks to stop, or a signal says so."""
        self._watch(self._listener, self._accept)
        self._upkeep.begin()
        self._leave_alone_until = (
            time.monotonic() + _FIRST_USER_GRACE
        )  # The start may have waited for a leftover.
        while not self._ending:
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._tend()
        self._end()

    def end(self) -> None:
        """Makes `run` return after an orderly shutdown."""
        self._ending = True

    def wake_on(self, source: socket.socket) -> None:
        """Wakes the loop when `source` has bytes: signals write there."""
        self._watch(source, lambda: source.recv(4096))

    # --- each turn ---------------------------------------------------------------------------------------------

    def _patience(self) -> float:
        now = time.monotonic()
        moments = [self._next_look] if self._users() else [self._next_look, self._leave_alone_until]
        return max(0.0, min(min(moments) - now, self._upkeep.patience()))

    def _tend(self) -> None:
        self._upkeep.advance()
        self._answer_waiting()
        if time.monotonic() >= self._next_look:
            self._look_around()
        if not self._users() and time.monotonic() >= self._leave_alone_until:
            self._ending = True

    def _answer_waiting(self) -> None:
        for peer in self._users():
            answer = self._upkeep.answer(peer.wanted) if peer.wanted is not None else None
            if answer is not None:
                peer.wanted = None
                peer.send({**answer, "lease": peer.number})
            if answer is not None and "failed" in answer:
                self._drop(peer)

    def _look_around(self) -> None:
        self._next_look = time.monotonic() + _LOOK_INTERVAL
        self._ending = self._ending or not self._owns_folder()

    def _owns_folder(self) -> bool:
        return _locks.is_at(self._lock, self._folder.keeper_lock)

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
            return self._refuse(peer, f"the keeper cannot read that: {error}")
        for message in messages:
            if peer.number in self._peers:
                self._try_to_obey(peer, message)
        if not data:
            self._drop(peer)
        return None

    def _try_to_obey(self, peer: Peer, message: Message) -> None:
        # Anybody who may open the socket can send anything; users must not lose their keeper over it.
        try:
            self._obey(peer, message)
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(peer, f"the keeper cannot read that: {error!r}")

    def _obey(self, peer: Peer, message: Message) -> None:
        if message.get("protocol") != PROTOCOL:
            return self._refuse(peer, "the running server was started by another version of toril; stop it")
        match message.get("want"):
            case "lease":
                self._admit(peer, message)
            case "status":
                peer.send(self._status())
            case "watch":
                peer.watches = True
                peer.send(self._status())
            case "farewell":
                peer.send({"unsaved": self._upkeep.unsaved(), "users": len(self._users())})
            case "stop":
                self._ending = self._by_request = True
            case other:
                self._refuse(peer, f"the keeper does not know {other!r}")
        return None

    def _admit(self, peer: Peer, message: Message) -> None:
        pid, wanted = int(message["pid"]), ServerSettings.from_message(message)
        peer.pid, peer.wanted = pid, wanted
        self._leave_alone_until = 0.0
        self._tell_watchers()

    def _refuse(self, peer: Peer, problem: str) -> None:
        peer.send({"failed": {"kind": "start", "problem": problem}})
        if peer.pid is None:
            self._drop(peer)  # A user stays one, whatever it says.

    def _drop(self, peer: Peer) -> None:
        if self._peers.pop(peer.number, None) is None:
            return
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.pid is not None:
            self._tell_watchers()

    def _tell_watchers(self) -> None:
        for peer in [peer for peer in self._peers.values() if peer.watches]:
            peer.send(self._status())

    def _users(self) -> list[Peer]:
        return [peer for peer in self._peers.values() if peer.pid is not None]

    def _status(self) -> Message:
        users = [{"lease": peer.number, "pid": peer.pid} for peer in self._users()]
        return {"status": {**self._upkeep.facts(), "keeper_pid": os.getpid(), "users": users}}

    def _watch(self, source: socket.socket, react: Callable[[], object]) -> None:
        self._selector.register(source, selectors.EVENT_READ, react)

    # --- the end -----------------------------------------------------------------------------------------------

    def _end(self) -> None:
        # From here on newcomers are refused by the kernel, and wait for our lock to start the next keeper.
        self._listener.close()
        if self._by_request:
            for user in self._users():
                user.send({"stopping": True})
        if self._owns_folder():
            self._upkeep.report_unsaved_data()
            self._upkeep.end()
            self._folder.keeper_socket.unlink(missing_ok=True)
            self._folder.clear_sockets()
        else:
            # The folder was deleted, perhaps made anew by another keeper. Whatever is at our paths is not ours.
            self._upkeep.abandon()
        self._selector.close()
        for peer in self._peers.values():
            peer.socket.close()


def main(arguments: list[str]) -> int:
    """`FOLDER BINARY SETTINGS`. Returns in the starter's child when users can connect; the keeper goes on alone."""
    folder, binary = Folder(Path(arguments[0])), Path(arguments[1])
    settings = ServerSettings.from_message(json.loads(arguments[2]))
    os.umask(0o077)
    lock = _locks.lock_within(folder.keeper_lock, _PREDECESSOR_GRACE)
    if lock is None:
        sys.stderr.write(f"the former keeper (process {_locks.holder_of(folder.keeper_lock)}) does not end")
        return 1
    try:
        folder.prepare()  # Again, under the lock: a predecessor tidied up when it ended.
        listener = listen(folder.keeper_socket)
    except OSError as error:
        sys.stderr.write(f"no socket can be opened at {folder.keeper_socket}: {error}")
        return 1
    if os.fork():
        return 0
    _live_alone(folder, lock)
    _keep(folder, ServerLifecycle(folder, binary, settings), listener, lock)
    return 0


def listen(path: Path) -> socket.socket:
    """A listener at `path`; what a killed predecessor left there is removed. The lock makes that safe."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(128)
    return listener


def _live_alone(folder: Folder, lock: int) -> None:
    os.setsid()  # Ctrl-C in the starter's terminal is not meant for us.
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(
        folder.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
    )  # An error of ours must not be lost.
    for standard, target in enumerate((nothing, nothing, log)):
        os.dup2(target, standard)
    os.close(nothing)
    os.close(log)
    _locks.sign(lock)


def _keep(folder: Folder, upkeep: ServerLifecycle, listener: socket.socket, lock: int) -> None:
    keeper = Supervisor(folder, upkeep, listener, lock)
    ear, mouth = socket.socketpair()
    for end in (ear, mouth):
        end.setblocking(False)
    signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # Its wake-up byte is what counts: the server died.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: keeper.end())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keeper.wake_on(ear)
    keeper.run()
