"""The phases of the server: starting, ready, down and started again.

Guarantee: while there are users, a server that ended is started again, at once the first time and with growing delays
if it keeps ending. A server that was never ready is not started again: its users get the reason.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

from toril.server import _resp
from toril.server._control import Message
from toril.server._process import FolderBusy, ServerProcess, free_port
from toril.server._settings import PortConflict, ServerSettings
from toril.server.folder import Folder

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 5.0  # seconds before a server that ended is started again
_STABLE_AFTER = 30.0  # seconds ready after which earlier ends do not count any more
# Seconds between two PINGs: most servers start quickly, few have much to load.
_FIRST_POLL, _LONGEST_POLL = 0.002, 0.05

_TOO_NEW = ("Can't handle RDB format version", "Can't handle the RDB format version", "Unknown command")
_NO_PORT = ("Failed listening on port", "Could not create server TCP listening socket")

Phase = Literal["idle", "starting", "ready", "down"]


class ServerLifecycle:
    """The server of one folder, over all its starts."""

    def __init__(self, folder: Folder, binary: Path, settings: ServerSettings) -> None:
        self._folder = folder
        self._process = ServerProcess(folder, binary)
        self._settings = _with_real_port(settings)
        self._phase: Phase = "idle"
        self._since = time.monotonic()
        self._poll = _FIRST_POLL
        self._failures = 0
        self._starts = 0
        self._ready_at: float | None = None  # wall clock, of the present process
        self._was_ever_ready = False
        self._version = "unknown"
        self._failure: Message | None = None

    def start(self) -> None:
        """Starts the server; `update` follows its progress."""
        self._starts += 1
        self._poll = _FIRST_POLL
        try:
            self._process.spawn(self._settings)
        except FolderBusy as busy:
            self._fail({"kind": "folder", "problem": str(busy)})
        except OSError as error:
            self._fail({"kind": "start", "problem": f"the server cannot be executed: {error}"})
        else:
            self._set_phase("starting")

    def update(self) -> None:
        """Checks the server and changes the phase."""
        match self._phase:
            case "starting":
                self._check_start()
            case "ready":
                if (code := self._process.exit_code()) is not None:
                    self._schedule_restart(f"the server ended ({code})")
            case "down":
                if self.seconds_to_next_check() <= 0:
                    self._failure = None
                    self.start()
            case "idle":
                return

    def seconds_to_next_check(self) -> float:
        """Returns the seconds until `update` must be called, unless a signal comes earlier."""
        match self._phase:
            case "starting":
                return self._poll
            case "down":
                return self._since + self._restart_delay() - time.monotonic()
            case _:
                return float("inf")

    def lease_reply(self, wanted: ServerSettings) -> Message | None:
        """Returns the reply to a user that requested `wanted`: ready, failed, or None while there is none."""
        if self._phase != "ready":
            return {"failed": self._failure} if self._failure else None
        try:
            self._apply_settings(wanted)
        except PortConflict as conflict:
            return {"failed": {"kind": "port", "problem": str(conflict), "port": wanted.port}}
        return {"ready": self.facts()}

    def unsaved_reason(self) -> str | None:
        """Returns why the server cannot write its append-only file; None if it can."""
        if self._phase != "ready":
            return None
        try:
            figures = _resp.info(self._process.place, "persistence")
        except (OSError, _resp.ErrorReply):
            return None  # It is busy or has ended: there is nothing to report.
        return self._disk_problem() if figures.get("aof_last_write_status") == "err" else None

    def log_unsaved_data(self) -> None:
        if (problem := self.unsaved_reason()) is not None:
            self._log(f"the server ends although its append-only file cannot be written: {problem}")

    def stop(self) -> None:
        self._process.shut_down()
        self._phase = "idle"

    def kill(self) -> None:
        self._process.kill()
        self._phase = "idle"

    def facts(self) -> dict[str, Any]:
        return {
            "phase": self._phase,
            "pid": self._process.pid,
            "url": self._folder.url,
            "port": self._settings.port,
            "fsync": self._settings.fsync,
            "version": self._version,
            "ready_at": self._ready_at,
            "restarts": self._starts - 1,
        }

    def _set_phase(self, phase: Phase) -> None:
        self._phase, self._since = phase, time.monotonic()

    def _check_start(self) -> None:
        if (code := self._process.exit_code()) is not None:
            self._fail(self._reason(code))
        elif self._process.is_ready():
            self._mark_ready()
        else:
            self._poll = min(self._poll * 1.2, _LONGEST_POLL)

    def _mark_ready(self) -> None:
        self._version = self._process.version()
        self._ready_at = time.time()
        self._was_ever_ready = True
        self._set_phase("ready")

    def _schedule_restart(self, what: str) -> None:
        stable = time.monotonic() - self._since > _STABLE_AFTER
        self._failures = 1 if stable else self._failures + 1
        self._set_phase("down")
        self._log(f"{what}; starting it again in {self._restart_delay():.2f} s")

    def _fail(self, failure: Message) -> None:
        self._failure = failure
        if self._was_ever_ready:
            self._schedule_restart(f"the server did not start: {failure['problem']}")
        else:
            self._set_phase("idle")  # Its users get the reason and disconnect; then the supervisor ends.

    def _reason(self, code: int) -> Message:
        log = self._process.log_tail()
        if line := _line_with(_TOO_NEW, log):
            return {"kind": "too-new", "problem": line}
        if self._settings.port and _line_with(_NO_PORT, log):
            return {"kind": "port", "problem": "another program listens there", "port": self._settings.port}
        try:
            self._folder.check_disk_space()
        except OSError as error:  # The server may not have been able to log it.
            return {"kind": "disk-full", "problem": str(error)}
        return {
            "kind": "start",
            "problem": f"the server ended with code {code} instead of starting",
            "log": log,
        }

    def _disk_problem(self) -> str:
        try:
            self._folder.check_disk_space()
        except OSError as error:
            return str(error)
        return "the last write failed; there is space on the disk again"

    def _restart_delay(self) -> float:
        return float(min(_FIRST_DELAY * 2 ** min(self._failures - 1, 10), _LONGEST_DELAY))

    def _apply_settings(self, wanted: ServerSettings) -> None:
        merged = _with_real_port(self._settings.merged_with(wanted))
        try:
            if merged.port != self._settings.port:
                self._process.require_password()
                self._process.configure("port", str(merged.port))
            if merged.fsync != self._settings.fsync:
                self._process.configure("appendfsync", merged.fsync)
        except _resp.ErrorReply as refusal:
            raise PortConflict(f"the server cannot listen there ({refusal})") from None
        except OSError as error:
            # It has just ended; its next process gets them.
            self._log(f"the server did not take new settings: {error}")
        self._settings = merged

    def _log(self, line: str) -> None:
        stamp = time.strftime("%d %b %Y %H:%M:%S", time.gmtime())
        try:
            with os.fdopen(self._folder.open_log(), "a") as log:
                log.write(f"supervisor {stamp} {line}\n")
        except OSError:
            return  # The folder is full or deleted: users get that error from the server.


def _with_real_port(settings: ServerSettings) -> ServerSettings:
    if settings.port != 0:
        return settings
    return ServerSettings(port=free_port(), fsync=settings.fsync)


def _line_with(needles: tuple[str, ...], text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if any(n in line for n in needles)), "")
