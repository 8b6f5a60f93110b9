"""A PostgreSQL process for one test, in a folder of its own.

Guarantee: it listens on loopback only and is killed by the kernel when its starter ends. PostgreSQL refuses to run as
root, so that then it runs as the user `postgres` of Debian's package.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg

from tests.servers.process import free_port

READY_WITHIN: Final = 60.0
USER: Final = "postgres"


def postgres_folder() -> Path:
    """The programs of the newest version that Debian has installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        raise FileNotFoundError("postgresql is not installed: run `make setup`")
    return found[-1].parent


class Postgres:
    """A server that can be killed, and started again with its data."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="toril-postgres-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            user = pwd.getpwnam(USER)
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        initdb = [str(postgres_folder() / "initdb"), "--auth=trust", f"--username={USER}", "--no-sync"]
        self._run([*initdb, "--encoding=UTF8", "--locale=C", str(self.folder / "data")])

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            [*_as_user(), *command], cwd=self.folder, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def url(self) -> str:
        """For SQLAlchemy, with psycopg 3."""
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/postgres"

    @property
    def dsn(self) -> str:
        """For psycopg itself."""
        return f"host=127.0.0.1 port={self.port} user={USER} dbname=postgres connect_timeout=5"

    def start(self) -> Self:
        """Starts it; after `kill` on the same port and data, which it recovers from its log."""
        settings = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": ""}
        command = [*_as_user(), "setpriv", "--pdeathsig", "KILL", str(postgres_folder() / "postgres")]
        command += ["-D", str(self.folder / "data")]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        self._wait_until_ready(command)
        return self

    def _wait_until_ready(self, command: list[str]) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while True:
            # It ends at once while a process of the server before is still dying and holds its memory.
            if self._process is None or self._process.poll() is not None:
                with (self.folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
            try:
                psycopg.connect(self.dsn).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """Kills the server with all its processes, as a crash of the machine would."""
        if self._process is None:
            return
        children = f"/proc/{self._process.pid}/task/{self._process.pid}/children"
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in Path(children).read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _as_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(USER)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
