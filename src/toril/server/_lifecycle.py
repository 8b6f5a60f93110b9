"""The server's ups and downs: starting, ready, down and started again.

Guarantee: while there are users, a server that died is started again, at once the first time and with growing pauses
if it keeps dying. A server that never got ready is not tried again: whoever asked for it is told why.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from toril.server import _resp
from toril.server._control import Message
from toril.server._folder import Folder
from toril.server._process import FolderBusy, ServerProcess, free_port
from toril.server._settings import PortConflict, ServerSettings

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0  # seconds before a dead server is started again
_STEADY_AFTER = 30.0  # seconds of life after which earlier deaths are forgotten
_FIRST_POLL, _LONGEST_POLL = (
    0.002,
    0.05,
)  # seconds between two greetings: quick starts are common, long loads rare

_TOO_NEW = ("Can't handle RDB format version", "Can't handle the RDB format version", "Unknown command")
_NO_PORT = ("Failed listening on port", "Could not create server TCP listening socket")

Phase = Literal["idle", "starting", "ready", "down"]


class ServerLifecycle:
    """One folder's server over all its lives."""

    def __init__(self, folder: Folder, binary: Path, settings: ServerSettings) -> None:
        self._folder = folder
        self._process = ServerProcess(folder, binary)
        self._settings = _with_real_port(settings)
        self._phase: Phase = "idle"
        self._since = time.monotonic()
        self._poll = _FIRST_POLL
        self._deaths = 0
        self._starts = 0
        self._ready_at: float | None = None  # wall clock, of the present life
        self._was_ever_ready = False
        self._version = "unknown"
        self._failure: Message | None = None

    def begin(self) -> None:
        """Starts the server; `advance` sees it through."""
        self._starts += 1
        self._poll = _FIRST_POLL
        try:
            self._process.spawn(self._settings)
        except FolderBusy as busy:
            self._fail({"kind": "folder", "problem": str(busy)})
        except OSError as error:
            self._fail({"kind": "start", "problem": f"the server cannot be executed: {error}"})
        else:
            self._turn("starting")

    def advance(self) -> None:
        """Notices what has happened to the server since the last call."""
        match self._phase:
            case "starting":
                self._look_for_life()
            case "ready":
                if (code := self._process.ended()) is not None:
                    self._note_death(f"the server ended ({code})")
            case "down":
                if self.patience() <= 0:
                    self._failure = None
                    self.begin()
            case "idle":
                return

    def patience(self) -> float:
        """How long nothing needs to be looked at, unless a signal comes."""
        match self._phase:
            case "starting":
                return self._poll
            case "down":
                return self._since + self._pause() - time.monotonic()
            case _:
                return float("inf")

    def answer(self, wanted: ServerSettings) -> Message | None:
        """What to tell somebody who asked for `wanted`: ready, failed, or nothing yet."""
        if self._phase != "ready":
            return {"failed": self._failure} if self._failure else None
        try:
            self._adapt(wanted)
        except PortConflict as conflict:
            return {"failed": {"kind": "port", "problem": str(conflict), "port": wanted.port}}
        return {"ready": self.facts()}

    def unsaved(self) -> str | None:
        """Why the server's last words would not reach its file; None while they do."""
        if self._phase != "ready":
            return None
        try:
            figures = _resp.info(self._folder.server_socket, "persistence")
        except (OSError, _resp.ErrorReply):
            return None  # It is busy or gone: nothing that we could tell.
        return self._room_problem() if figures.get("aof_last_write_status") == "err" else None

    def report_unsaved_data(self) -> None:
        if (problem := self.unsaved()) is not None:
            self._log(f"the server ends although its append-only file cannot be written: {problem}")

    def end(self) -> None:
        self._process.shut_down()
        self._phase = "idle"

    def abandon(self) -> None:
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

    def _turn(self, phase: Phase) -> None:
        self._phase, self._since = phase, time.monotonic()

    def _look_for_life(self) -> None:
        if (code := self._process.ended()) is not None:
            self._fail(self._reason(code))
        elif self._process.is_ready():
            self._greet()
        else:
            self._poll = min(self._poll * 1.2, _LONGEST_POLL)

    def _greet(self) -> None:
        self._version = self._process.version()
        self._ready_at = time.time()
        self._was_ever_ready = True
        self._turn("ready")

    def _note_death(self, what: str) -> None:
        steady = time.monotonic() - self._since > _STEADY_AFTER
        self._deaths = 1 if steady else self._deaths + 1
        self._turn("down")
        self._log(f"{what}; starting it again in {self._pause():.2f} s")

    def _fail(self, failure: Message) -> None:
        self._failure = failure
        if self._was_ever_ready:
            self._note_death(f"the server did not start: {failure['problem']}")
        else:
            self._turn("idle")  # Those who asked are told; when they are gone, so are we.

    def _reason(self, code: int) -> Message:
        log = self._process.log_tail()
        if said := _line_with(_TOO_NEW, log):
            return {"kind": "too-new", "problem": said}
        if self._settings.port and _line_with(_NO_PORT, log):
            return {"kind": "port", "problem": "another program listens there", "port": self._settings.port}
        try:
            self._folder.demand_room()
        except OSError as error:  # The server's own words about it may have found no room either.
            return {"kind": "room", "problem": str(error)}
        return {
            "kind": "start",
            "problem": f"the server ended with code {code} instead of starting",
            "log": log,
        }

    def _room_problem(self) -> str:
        try:
            self._folder.demand_room()
        except OSError as error:
            return str(error)
        return "the last write failed; there is room by now"

    def _pause(self) -> float:
        return float(min(_FIRST_PAUSE * 2 ** min(self._deaths - 1, 10), _LONGEST_PAUSE))

    def _adapt(self, wanted: ServerSettings) -> None:
        merged = _with_real_port(self._settings.joined_with(wanted))
        try:
            if merged.port != self._settings.port:
                self._process.configure("port", str(merged.port))
            if merged.fsync != self._settings.fsync:
                self._process.configure("appendfsync", merged.fsync)
        except _resp.ErrorReply as refusal:
            raise PortConflict(f"the server cannot listen there ({refusal})") from None
        except OSError as error:
            self._log(
                f"the server did not take new settings: {error}"
            )  # It just died; its next life has them.
        self._settings = merged

    def _log(self, line: str) -> None:
        stamp = time.strftime("%d %b %Y %H:%M:%S", time.gmtime())
        try:
            with self._folder.log.open("a") as log:
                log.write(f"keeper {stamp} {line}\n")
        except OSError:
            return  # The folder is full or gone: the users will hear of it from the server.


def _with_real_port(settings: ServerSettings) -> ServerSettings:
    if settings.port != 0:
        return settings
    return ServerSettings(port=free_port(), fsync=settings.fsync)


def _line_with(needles: tuple[str, ...], text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if any(n in line for n in needles)), "")
