"""This process as a user of one folder's server, and the thread that notices when the keeper is gone.

Guarantee: if the keeper dies, keeper and server come back under the same address and port without the holder doing
anything, unless the server was stopped on request. A forked child remains a user through the connection that it
inherited, even if its parent leaves.
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
from toril.server._attach import join
from toril.server._control import Conversation
from toril.server._folder import Folder
from toril.server._settings import ServerSettings
from toril.server._unsaved_warning import warn_about_unsaved_data

_log = logging.getLogger("toril.server")

_REVIVAL_TIMEOUT = 30.0  # one attempt to get a lost keeper back; a large folder needs time to load
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0  # seconds between two such attempts
_LEAVING_TIMEOUT = 15.0  # a shutdown on a slow disk; after that the keeper goes on alone


class SupervisorClient:
    """One user of one folder; shared by all leases that this process has on it."""

    def __init__(self, folder: Folder, settings: ServerSettings, seconds: float) -> None:
        self.folder = folder
        self.leases = 0
        self._joined = join(folder, settings, seconds)
        self._process = os.getpid()
        self._was_forked = False
        self._stopped = False
        self._leaving = threading.Event()
        self._swap = threading.Lock()
        self._bell, self._ear = socket.socketpair()
        self._watcher: threading.Thread | None = threading.Thread(
            target=self._watch, name="toril-server-watch", daemon=True
        )
        self._watcher.start()

    @property
    def facts(self) -> dict[str, Any]:
        """What the keeper last said of the server."""
        return self._joined.facts

    def is_usable(self) -> bool:
        """Whether this very process has it, and the server was not stopped on request."""
        return self._process == os.getpid() and not self._stopped

    def adapt(self, settings: ServerSettings, seconds: float) -> None:
        """Asks for what a further lease wants beyond the first, and for a server that answers."""
        visit = join(self.folder, settings, seconds)
        visit.conversation.close()
        self.facts.update(visit.facts)

    def leave(self, *, wait: bool) -> None:
        """Stops being a user. `wait`: returns when the server is down, or has other users."""
        self._warn_about_unsaved_data()
        farewell = self._farewell() if wait else None
        self._stop_watching()
        with self._swap:
            self._joined.conversation.close()
        if farewell is not None:
            self._wait_cancelled(farewell)

    def note_fork(self) -> None:
        """In the parent: a child may hold our connection from now on."""
        self._was_forked = True

    def continue_in_child(self) -> None:
        """In the child: the watcher did not come along, and locks may have been copied while they were held."""
        self._watcher = None
        self._leaving, self._swap = threading.Event(), threading.Lock()
        self._bell.close()
        self._ear.close()

    # --- leaving -----------------------------------------------------------------------------------------------

    def _stop_watching(self) -> None:
        self._leaving.set()
        if self._watcher is None:
            return
        # Not by closing it: a forked child may hold a copy. A watcher that saw the server stopped has closed its end.
        with contextlib.suppress(BrokenPipeError):
            self._bell.send(b"!")
        self._watcher.join(timeout=1.0)  # A watcher that is reviving a keeper sees the flag when it is done.
        self._bell.close()

    def _warn_about_unsaved_data(self) -> None:
        if not self._was_forked and self.is_usable():
            with contextlib.suppress(EmbeddedServerFailed):
                warn_about_unsaved_data(self.folder, last_users=1)

    def _farewell(self) -> Conversation | None:
        # A connection that a child may share does not close when we close it: there is nothing to wait for.
        if self._was_forked or not self.is_usable():
            return None
        try:
            farewell = Conversation.open(self.folder.keeper_socket)
            if farewell is not None and farewell.ask({"want": "watch"}, _LEAVING_TIMEOUT) is None:
                farewell.close()
                return None
        except OSError:
            return None
        return farewell

    def _wait_cancelled(self, farewell: Conversation) -> None:
        try:
            while (message := farewell.next(_LEAVING_TIMEOUT)) is not None:
                others = {user["lease"] for user in message["status"]["users"]} - {self._joined.number}
                ours_is_gone = len(others) == len(message["status"]["users"])
                if others and ours_is_gone:
                    return
        except TimeoutError:
            _log.warning("the server in %s is still shutting down", self.folder.root)
        finally:
            farewell.close()

    # --- watching ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        with self._ear:
            while self._keeper_was_lost():
                if not self._revive():
                    return

    def _keeper_was_lost(self) -> bool:
        """Waits until the keeper hangs up without a word (True), says that it stops, or the holder leaves (False)."""
        conversation = self._joined.conversation
        events = select.poll()
        events.register(self._ear, select.POLLIN)
        events.register(conversation.socket, select.POLLIN)
        while self._ear.fileno() not in {descriptor for descriptor, _ in events.poll()}:
            try:
                message = conversation.next(_REVIVAL_TIMEOUT)
            except OSError:
                message = None  # It says half a line, or nothing that we understand.
            if message is None:
                return True
            if message.get("stopping"):
                self._stopped = True
                return False
        return False

    def _revive(self) -> bool:
        _log.warning("the keeper of %s is gone; starting another", self.folder.root)
        for attempt in count():
            try:
                return self._rejoin()
            except EmbeddedServerFailed as failure:
                pause = min(_FIRST_PAUSE * 2 ** min(attempt, 10), _LONGEST_PAUSE)
                _log.warning("no server yet, next attempt in %.2f s: %s", pause, failure)
                if self._leaving.wait(pause):
                    return False
        return False

    def _rejoin(self) -> bool:
        # With the port and fsync of the life before: other programs may rely on them.
        settings = ServerSettings.from_message(self.facts)
        joined = join(self.folder, settings, _REVIVAL_TIMEOUT)
        with self._swap:
            if self._leaving.is_set():
                joined.conversation.close()
                return False
            self._joined.conversation.close()
            self._joined = joined
        _log.warning("the server in %s answers again", self.folder.root)
        return True
