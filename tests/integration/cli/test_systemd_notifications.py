"""What workers report to systemd, on a real datagram socket."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Start
from tests.servers import Server
from tests.waiting import wait_until
from toril import sync

SECONDS = 60.0  # on a busy machine


class Manager:
    """The socket of a service manager, and what it received."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def until(self, text: str, seconds: float = SECONDS) -> None:
        """Waits for a message."""
        end = time.monotonic() + seconds
        while True:
            self._socket.settimeout(max(0.01, end - time.monotonic()))
            self.messages.append(self._socket.recv(4096).decode())
            if self.messages[-1] == text:
                return

    def is_silent_after(self, messages: int, *, seconds: float) -> bool:
        """Whether no more than so many messages come, each within so many seconds of the one before."""
        for _ in range(messages):
            try:
                self.until("WATCHDOG=1", seconds)
            except TimeoutError:
                return True
        return False

    def close(self) -> None:
        self._socket.close()


def written(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(made.path))
    monkeypatch.setenv("WATCHDOG_USEC", "1500000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    yield made
    made.close()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_ready_signs_of_life_and_stopping_are_sent(
    valkey: Server, prefix: str, start: Start, manager: Manager, processes: str
) -> None:
    words = ["worker", "handlers:handle", "--queue", "emails", "--processes", processes]
    worker = start(*words, "--redis", valkey.url, "--prefix", prefix)
    manager.until("READY=1")
    assert set(manager.messages) == {"READY=1"}
    for _ in range(3):
        manager.until("WATCHDOG=1")
    worker.send_signal(signal.SIGTERM)
    manager.until("STOPPING=1")
    assert worker.wait(SECONDS) == 0
    assert manager.messages.count("READY=1") == 1


def test_a_worker_whose_event_loop_is_blocked_gives_no_sign_of_life(
    valkey: Server, prefix: str, start: Start, manager: Manager, folder: Path
) -> None:
    (folder / "blocking.py").write_text("import time\nasync def handle(job):\n    time.sleep(600)\n")
    start("worker", "blocking:handle", "--queue", "emails", "--redis", valkey.url, "--prefix", prefix)
    manager.until("READY=1")
    with sync.Queue("emails", redis=valkey.url, prefix=prefix) as queue:
        job = queue.add("block", {})
        wait_until(job.is_active, "the handler runs", SECONDS)
    assert manager.is_silent_after(100, seconds=4.0), "for longer than the watchdog allows"


def test_a_child_that_hangs_is_replaced_and_the_others_go_on(
    valkey: Server, prefix: str, start: Start, manager: Manager, folder: Path
) -> None:
    (folder / "blocking.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "async def handle(job):\n"
        "    if job.attempts_started == 1:\n"
        "        Path('pid').write_text(str(os.getpid()))\n"
        "        time.sleep(600)\n"
        "    return os.getpid()\n"
    )
    words = ["worker", "blocking:handle", "--queue", "emails", "--processes", "2", "--lock-duration", "2"]
    worker = start(*words, "--redis", valkey.url, "--prefix", prefix)
    manager.until("READY=1")
    with sync.Queue("emails", redis=valkey.url, prefix=prefix) as queue:
        queue.add("block", {})
        hung = int(wait_until(lambda: written(folder / "pid"), "the handler runs", SECONDS))
        end = time.monotonic() + SECONDS
        while Path(f"/proc/{hung}").exists() and time.monotonic() < end:
            manager.until("WATCHDOG=1")
        assert not Path(f"/proc/{hung}").exists(), "the parent has killed it"
        assert worker.poll() is None
        manager.until("WATCHDOG=1")
    worker.send_signal(signal.SIGTERM)
    manager.until("STOPPING=1")


def test_an_address_in_the_abstract_namespace_is_used(
    valkey: Server, prefix: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{prefix}")
        listener.settimeout(SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{prefix}")
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        start("worker", "handlers:handle", "--queue", "emails", "--redis", valkey.url, "--prefix", prefix)
        assert listener.recv(100) == b"READY=1"


def test_the_watchdog_of_another_process_and_a_socket_that_is_gone_are_not_minded(
    valkey: Server, prefix: str, start: Start, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_PID", "1")
    worker = start(
        "worker", "handlers:handle", "--queue", "emails", "--redis", valkey.url, "--prefix", prefix
    )
    manager.until("READY=1")
    with pytest.raises(TimeoutError):
        manager.until("WATCHDOG=1", seconds=3.0)
    manager.close()
    manager.path.unlink()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(SECONDS) == 0
