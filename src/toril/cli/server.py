"""`toril server`: starts, shows and stops the embedded server of a folder."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from toril.cli._confirm import confirm
from toril.cli._options import AsJson, Yes
from toril.cli._output import emit, format_time, print_line, show_facts
from toril.errors import ServerStartFailed, redact
from toril.server import DEFAULT_FOLDER, EmbeddedServer, ServerStatus, status, stop
from toril.server.folder import Folder

FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the server's data.")]
_FOLDER = Path(DEFAULT_FOLDER)
# Time for a server with a large append-only file to load it.
READY_SECONDS = 60.0
POLL_SECONDS = 0.5
# Processes that continue after this one; kept so that a stop in the same process can wait for them.
_BACKGROUND: dict[Path, subprocess.Popen[bytes]] = {}


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        help="The embedded Valkey server of a folder: start, status, stop, url.", no_args_is_help=True
    )
    group.command("start")(start)
    group.command("status")(show_status)
    group.command("stop")(stop_server)
    group.command("url")(url)
    app.add_typer(group, name="server")


def start(
    folder: FolderArgument = _FOLDER,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, help="Also listen on this port of loopback; 0: any free port."
        ),
    ] = None,
    fsync: Annotated[
        Literal["everysec", "always", "no"],
        typer.Option(
            "--fsync", help="When writes are flushed to the disk; with always, a power cut loses nothing."
        ),
    ] = "everysec",
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Run it in the background and return when it is ready.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start the server and run it until Ctrl-C, or in the background with --detach."""
    if detach:
        _start_in_background(folder, port, fsync)
        _print_status(status(folder), as_json=as_json)
        return
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with EmbeddedServer(folder, port=port, fsync=fsync, timeout=READY_SECONDS) as server:
        _print_status(server.status(), as_json=as_json)
        # After `toril server stop` the server stays down.
        while not stopped.wait(POLL_SECONDS) and server.status().phase != "stopped":
            pass


def _start_in_background(folder: Path, port: int | None, fsync: str) -> None:
    arguments = [sys.executable, "-m", "toril.cli", "server", "start", str(folder), "--fsync", fsync]
    arguments += [] if port is None else ["--port", str(port)]
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(  # this interpreter and fixed arguments
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        _BACKGROUND[folder.resolve()] = process
        deadline = time.monotonic() + READY_SECONDS
        while not _is_used_by(status(folder), process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                stderr.seek(0)
                output = stderr.read().decode(errors="replace").strip()
                raise ServerStartFailed(str(folder), output or "it ended at once")
            time.sleep(0.02)


def _is_used_by(found: ServerStatus, pid: int) -> bool:
    return found.running and pid in found.users


def show_status(folder: FolderArgument = _FOLDER, as_json: AsJson = False) -> None:
    """Print the status of the server; the exit code is 1 if it does not run."""
    found = status(folder)
    _print_status(found, as_json=as_json)
    if not found.running:
        raise typer.Exit(1)


def stop_server(folder: FolderArgument = _FOLDER, yes: Yes = False, as_json: AsJson = False) -> None:
    """Stop the server, also for other processes that use it; its data is kept."""
    users = status(folder).users
    if users:
        confirm(f"{len(users)} processes use it ({', '.join(map(str, users))}). Stop it?", yes=yes)
    was_running = stop(folder)
    process = _BACKGROUND.pop(folder.resolve(), None)
    if process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS * 10)
    if as_json:
        emit({"folder": str(folder), "was_running": was_running})
    else:
        print_line("stopped" if was_running else "it was not running")


def url(
    folder: FolderArgument = _FOLDER,
    tcp: Annotated[
        bool, typer.Option("--tcp", help="Print the address on loopback, if it has a port.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the server's address, which is the same after every start."""
    found = status(folder)
    tcp_url = Folder.at(found.folder).tcp_url(found.port) if found.port else None
    if tcp and tcp_url is None:
        raise ServerStartFailed(str(folder), "it has no port; start it with --port 0")
    if as_json:
        emit({"url": found.url, "tcp_url": tcp_url, "running": found.running})
    else:
        print_line(tcp_url if tcp and tcp_url else found.url)


def _print_status(found: ServerStatus, *, as_json: bool) -> None:
    facts: dict[str, object] = {
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
    facts |= {
        "ready_at": format_time(found.ready_at),
        "url": redact(found.url),
    }  # `toril server url` prints all of it
    show_facts({name: "–" if value in (None, []) else value for name, value in facts.items()})
