"""`toril server`: the embedded server of a folder, by hand."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from toril.cli._confirm import ask
from toril.cli._options import AsJson, Yes
from toril.cli._output import emit, moment, say, show_facts
from toril.errors import ServerStartFailed
from toril.server import DEFAULT_FOLDER, EmbeddedServer, ServerStatus, status, stop

FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the server keeps its data.")]
_FOLDER = Path(DEFAULT_FOLDER)
# How long a server that loads a large append-only file may take.
READY_WITHIN = 60.0
LOOK_EVERY = 0.5
# Processes that outlive us on purpose; kept so that whoever stops the server can see them off.
_DETACHED: dict[Path, subprocess.Popen[bytes]] = {}


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="The embedded Valkey of a folder: start, look, stop.", no_args_is_help=True)
    group.command("start")(start)
    group.command("status")(show_status)
    group.command("stop")(stop_server)
    group.command("url")(url)
    app.add_typer(group, name="server")


def start(
    folder: FolderArgument = _FOLDER,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65535, help="Also listen on loopback there; 0: any free one."),
    ] = None,
    fsync: Annotated[
        Literal["everysec", "always", "no"],
        typer.Option("--fsync", help="When writes reach the disk; always: a power cut loses nothing."),
    ] = "everysec",
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it is ready; `stop` ends it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start the server and keep it up until Ctrl-C, or in the background with --detach."""
    if detach:
        _start_in_background(folder, port, fsync)
        _print_status(status(folder), as_json=as_json)
        return
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    with EmbeddedServer(folder, port=port, fsync=fsync, timeout=READY_WITHIN) as server:
        _print_status(server.status(), as_json=as_json)
        # A server that somebody stopped for all stays down; there is nothing left to keep up.
        while not over.wait(LOOK_EVERY) and server.status().phase != "stopped":
            pass


def _start_in_background(folder: Path, port: int | None, fsync: str) -> None:
    words = [sys.executable, "-m", "toril.cli", "server", "start", str(folder), "--fsync", fsync]
    words += [] if port is None else ["--port", str(port)]
    with tempfile.TemporaryFile() as said:
        holder = subprocess.Popen(  # noqa: S603  # our own interpreter and arguments
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )
        _DETACHED[folder.resolve()] = holder
        deadline = time.monotonic() + READY_WITHIN
        while not _serves(status(folder), holder.pid):
            if holder.poll() is not None or time.monotonic() > deadline:
                holder.kill()
                said.seek(0)
                words_of_it = said.read().decode(errors="replace").strip()
                raise ServerStartFailed(str(folder), words_of_it or "it ended at once")
            time.sleep(0.02)


def _serves(found: ServerStatus, pid: int) -> bool:
    return found.running and pid in found.users


def show_status(folder: FolderArgument = _FOLDER, as_json: AsJson = False) -> None:
    """Say how the server is; the exit code is 1 when it does not run."""
    found = status(folder)
    _print_status(found, as_json=as_json)
    if not found.running:
        raise typer.Exit(1)


def stop_server(folder: FolderArgument = _FOLDER, yes: Yes = False, as_json: AsJson = False) -> None:
    """End the server, also for the other processes that use it; its data stays."""
    users = status(folder).users
    if users:
        ask(f"{len(users)} processes use it ({', '.join(map(str, users))}). Stop it?", yes=yes)
    was_running = stop(folder)
    holder = _DETACHED.pop(folder.resolve(), None)
    if holder is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            holder.wait(LOOK_EVERY * 10)
    if as_json:
        emit({"folder": str(folder), "was_running": was_running})
    else:
        say("stopped" if was_running else "it was not running")


def url(
    folder: FolderArgument = _FOLDER,
    tcp: Annotated[bool, typer.Option("--tcp", help="The address on loopback, if it has one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the server's address, which stays the same however often it is started."""
    found = status(folder)
    tcp_url = f"redis://127.0.0.1:{found.port}" if found.port else None
    if tcp and tcp_url is None:
        raise ServerStartFailed(str(folder), "it has no port; start it with --port 0")
    if as_json:
        emit({"url": found.url, "tcp_url": tcp_url, "running": found.running})
    else:
        say(tcp_url if tcp and tcp_url else found.url)


def _print_status(found: ServerStatus, *, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "folder": str(found.folder),
        "running": found.running,
        "url": found.url,
        "port": found.port,
        "version": found.version,
        "pid": found.pid,
        "users": list(found.users),
        "phase": found.phase,
        "fsync": found.fsync,
        "ready_at": found.ready_at,
        "data_bytes": found.data_bytes,
        "restarts": found.restarts,
    }
    if as_json:
        emit(facts)
        return
    facts["ready_at"] = moment(found.ready_at)
    show_facts({name: "–" if value in (None, []) else value for name, value in facts.items()})
