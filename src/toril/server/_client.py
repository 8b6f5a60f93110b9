"""This process as a user of one folder's server, and the thread that notices when the supervisor has ended.

Guarantee: if the supervisor is killed, supervisor and server are started again under the same address and port, unless
the server was stopped on request. A forked child stays a user through the connection that it inherited, even if its
parent detaches.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from itertools import count
from typing import Any

from toril.errors import EmbeddedServerFailed
from toril.server._attach import attach
from toril.server._control import ControlConnection
from toril.server._settings import ServerSettings
from toril.server._unsaved_warning import warn_about_unsaved_data
from toril.server.folder import Folder

_log = logging.getLogger("toril.server")

_ATTACH_TIMEOUT = 30.0  # of one attempt to replace a supervisor; a large folder needs time to load
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0  # seconds between two such attempts
_DETACH_TIMEOUT = 15.0  # a shutdown on a slow disk; after that the supervisor continues alone


class SupervisorClient:
    """One user of one folder; shared by all leases that this process has on it."""

    def __init__(self, folder: Folder, settings: ServerSettings, seconds: float) -> None:
        self.folder = folder
        self.leases = 0
        self._attachment = attach(folder, settings, seconds)
        self._process = os.getpid()
        self._was_forked = False
        self._stopped = False
        self._detaching = threading.Event()
        self._attachment_lock = threading.Lock()
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._watch_thread: threading.Thread | None = threading.Thread(
            target=self._watch, name="toril-server-watch", daemon=True
        )
        self._watch_thread.start()

    @property
    def facts(self) -> dict[str, Any]:
        """What the supervisor last reported about the server."""
        return self._attachment.facts

    def is_usable(self) -> bool:
        """Returns whether this process made it and the server was not stopped on request."""
        return self._process == os.getpid() and not self._stopped

    def add_settings(self, settings: ServerSettings, seconds: float) -> None:
        """Requests the settings of a further lease, and waits for a server that answers."""
        attached = attach(self.folder, settings, seconds)
        attached.connection.close()
        self.facts.update(attached.facts)

    def detach(self, *, wait: bool) -> None:
        """Stops being a user. `wait`: returns when the server has ended, or has other users."""
        self._warn_about_unsaved_data()
        watch = self._open_watch() if wait else None
        self._stop_watching()
        with self._attachment_lock:
            self._attachment.connection.close()
        if watch is not None:
            self._wait_for_end_or_other_users(watch)

    def note_fork(self) -> None:
        """In the parent: a child may have the same connection from now on."""
        self._was_forked = True

    def continue_in_child(self) -> None:
        """In the child: there is no watch thread, and locks may have been copied while they were held."""
        self._watch_thread = None
        self._detaching, self._attachment_lock = threading.Event(), threading.Lock()
        self._wake_sender.close()
        self._wake_receiver.close()

    # --- detach ------------------------------------------------------------------------------------------------

    def _stop_watching(self) -> None:
        self._detaching.set()
        if self._watch_thread is None:
            return
        # Not by closing it: a forked child may hold a copy. A watcher that saw the server stopped has closed its end.
        with contextlib.suppress(BrokenPipeError):
            self._wake_sender.send(b"!")
        self._watch_thread.join(timeout=1.0)  # While it attaches again, it sees the flag when that is done.
        self._wake_sender.close()

    def _warn_about_unsaved_data(self) -> None:
        if not self._was_forked and self.is_usable():
            with contextlib.suppress(EmbeddedServerFailed):
                warn_about_unsaved_data(self.folder, last_users=1)

    def _open_watch(self) -> ControlConnection | None:
        # A connection that a child may share stays open when it is closed here: there is nothing to wait for.
        if self._was_forked or not self.is_usable():
            return None
        try:
            watch = ControlConnection.open(self.folder.control_socket)
            if watch is not None and watch.request({"want": "watch"}, _DETACH_TIMEOUT) is None:
                watch.close()
                return None
        except OSError:
            return None
        return watch

    def _wait_for_end_or_other_users(self, watch: ControlConnection) -> None:
        try:
            while (message := watch.receive(_DETACH_TIMEOUT)) is not None:
                others = {user["lease"] for user in message["status"]["users"]} - {self._attachment.number}
                ours_is_gone = len(others) == len(message["status"]["users"])
                if others and ours_is_gone:
                    return
        except TimeoutError:
            _log.warning("the server in %s is still shutting down", self.folder.root)
        finally:
            watch.close()

    # --- watch -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        with self._wake_receiver:
            while self._supervisor_was_lost():
                if not self._attach_with_retries():
                    return

    def _supervisor_was_lost(self) -> bool:
        """Waits. Returns True if the supervisor ended without notice, False if it stops on request or we detach."""
        connection = self._attachment.connection
        events = select.poll()
        events.register(self._wake_receiver, select.POLLIN)
        events.register(connection.socket, select.POLLIN)
        while self._wake_receiver.fileno() not in {descriptor for descriptor, _ in events.poll()}:
            try:
                message = connection.receive(_ATTACH_TIMEOUT)
            except OSError:
                message = None  # It sent half a line, or no message.
            if message is None:
                return True
            if message.get("stopping"):
                self._stopped = True
                return False
        return False

    def _attach_with_retries(self) -> bool:
        _log.warning("the supervisor of %s has ended; starting another", self.folder.root)
        for attempt in count():
            try:
                return self._attach_again()
            except EmbeddedServerFailed as failure:
                pause = min(_FIRST_PAUSE * 2 ** min(attempt, 10), _LONGEST_PAUSE)
                _log.warning("no server yet, next attempt in %.2f s: %s", pause, failure)
                if self._detaching.wait(pause):
                    return False
        return False

    def _attach_again(self) -> bool:
        # With the port and fsync that it had: other programs may rely on them.
        settings = ServerSettings.from_message(self.facts)
        attached = attach(self.folder, settings, _ATTACH_TIMEOUT)
        with self._attachment_lock:
            if self._detaching.is_set():
                attached.connection.close()
                return False
            self._attachment.connection.close()
            self._attachment = attached
        _log.warning("the server in %s answers again", self.folder.root)
        return True
