"""The supervisor's loop, run in a thread of the test so that each of its rounds can be observed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toril.errors import FolderUnusable
from toril.server import _locks, _supervisor, server_binary
from toril.server._attach import attach
from toril.server._control import PROTOCOL, ControlConnection
from toril.server._lifecycle import ServerLifecycle
from toril.server._settings import ServerSettings
from toril.server._supervisor import Supervisor
from toril.server.folder import Folder

MAX_WAIT_SECONDS = 20.0
LEASE = {"want": "lease", "pid": 1, "port": None, "fsync": "everysec"}


@pytest.fixture
def start_supervisor(folder: Path) -> Iterator[Callable[..., Folder]]:
    """Starts a supervisor for the test's folder; it must end by itself once its users are gone."""
    place = Folder(folder)
    place.prepare()
    lock = _locks.try_lock(place.supervisor_lock)
    assert lock is not None
    threads: list[threading.Thread] = []

    def start(binary: Path | None = None, **settings: Any) -> Folder:
        lifecycle = ServerLifecycle(place, binary or server_binary(), ServerSettings(**settings))
        supervisor = Supervisor(place, lifecycle, _supervisor.listen(place.control_socket), lock)
        threads.append(threading.Thread(target=supervisor.run, name="supervisor"))
        threads[0].start()
        return place

    yield start
    threads[0].join(MAX_WAIT_SECONDS)
    os.close(lock)
    assert not threads[0].is_alive()


def connected(place: Folder) -> ControlConnection:
    connection = ControlConnection.open(place.control_socket)
    assert connection is not None
    return connection


def requested(connection: ControlConnection, message: dict[str, Any]) -> dict[str, Any]:
    answer = connection.request(message, MAX_WAIT_SECONDS)
    assert answer is not None
    return answer


def test_a_lease_is_answered_when_the_server_is_ready_and_ends_with_its_connection(
    start_supervisor: Callable[..., Folder],
) -> None:
    place = start_supervisor(port=0, fsync="always")
    user = connected(place)
    answer = requested(user, LEASE)
    assert answer["ready"]["phase"] == "ready"
    assert answer["ready"]["url"] == place.url
    user.close()


def test_watchers_are_notified_when_users_connect_and_disconnect(
    start_supervisor: Callable[..., Folder],
) -> None:
    place = start_supervisor()
    first, watcher, second = connected(place), connected(place), connected(place)
    number = requested(first, LEASE)["lease"]
    assert [user["lease"] for user in requested(watcher, {"want": "watch"})["status"]["users"]] == [number]
    requested(second, {**LEASE, "pid": 2})
    second.close()
    counts = []
    for _ in range(2):
        change = watcher.receive(MAX_WAIT_SECONDS)
        assert change is not None
        counts.append(len(change["status"]["users"]))
    assert counts == [2, 1]
    first.close()
    while watcher.receive(MAX_WAIT_SECONDS) is not None:
        pass
    watcher.close()


def test_a_server_that_ended_is_started_again_for_its_users(start_supervisor: Callable[..., Folder]) -> None:
    place = start_supervisor(fsync="always")
    user, newcomer = connected(place), connected(place)
    pid = requested(user, LEASE)["ready"]["pid"]
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    after = requested(newcomer, LEASE)["ready"]
    assert after["restarts"] == 1
    assert after["pid"] != pid
    assert "starting it again" in place.log.read_text()
    user.close()
    newcomer.close()


def test_a_server_that_cannot_be_executed_is_reported_to_its_users(
    start_supervisor: Callable[..., Folder], folder: Path
) -> None:
    place = start_supervisor(binary=folder / "no-such-server")
    user = connected(place)
    assert "cannot be executed" in requested(user, LEASE)["failed"]["problem"]
    user.close()


def test_a_stop_is_announced_to_users(start_supervisor: Callable[..., Folder]) -> None:
    place = start_supervisor()
    user, other = connected(place), connected(place)
    requested(user, LEASE)
    assert other.request({"want": "stop"}, MAX_WAIT_SECONDS) is None
    assert user.receive(MAX_WAIT_SECONDS) == {"stopping": True}
    assert user.receive(MAX_WAIT_SECONDS) is None
    user.close()
    other.close()


def test_unknown_requests_are_rejected_and_change_nothing(start_supervisor: Callable[..., Folder]) -> None:
    place = start_supervisor()
    user = connected(place)
    requested(user, LEASE)
    unknown, older, raw_socket = connected(place), connected(place), socket.socket(socket.AF_UNIX)
    assert "does not know" in requested(unknown, {"want": "tea"})["failed"]["problem"]
    assert (
        "another version"
        in requested(older, {"want": "status", "protocol": PROTOCOL + 1})["failed"]["problem"]
    )
    with raw_socket:
        raw_socket.connect(str(place.control_socket))
        raw_socket.sendall(b"GET / HTTP/1.1\n")
        assert b"cannot read that" in raw_socket.recv(1000)
        assert raw_socket.recv(100) == b""
    assert requested(user, {"want": "status"})["status"]["phase"] == "ready"
    for connection in (user, unknown, older):
        connection.close()


GARBAGE = [
    b"GET / HTTP/1.1\n",
    b"[]\n",
    b"null\n",
    b"7\n",
    b"\xff\xfe\n",
    b"[" * 100_000 + b"\n",
    b"x" * 1_100_000,
    *[json.dumps({"protocol": PROTOCOL, **rest}).encode() + b"\n" for rest in (
        {},
        {"want": None},
        {"want": ["lease"]},
        {"want": "lease"},
        {"want": "lease", "pid": None},
        {"want": "lease", "pid": "x"},
        {"want": "lease", "pid": 1, "port": "x"},
        {"want": "lease", "pid": 1, "port": -1},
        {"want": "lease", "pid": 1, "fsync": "bogus"},
        {"want": "lease", "pid": 1, "fsync": []},
    )],
]  # fmt: skip


@pytest.mark.parametrize("words", GARBAGE, ids=lambda words: repr(words[:40]))
def test_garbage_on_the_socket_does_not_end_the_supervisor(
    start_supervisor: Callable[..., Folder], words: bytes
) -> None:
    place = start_supervisor()
    user = connected(place)
    requested(user, LEASE)
    with socket.socket(socket.AF_UNIX) as raw_socket:
        raw_socket.settimeout(MAX_WAIT_SECONDS)
        raw_socket.connect(str(place.control_socket))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            raw_socket.sendall(words)
            assert b"failed" in raw_socket.recv(1000)
    status = requested(user, {"want": "status"})["status"]
    assert (status["phase"], len(status["users"])) == ("ready", 1)
    user.close()


def test_a_user_that_sends_an_unknown_request_stays_a_user(start_supervisor: Callable[..., Folder]) -> None:
    place = start_supervisor()
    user = connected(place)
    requested(user, LEASE)
    assert "does not know" in requested(user, {"want": "tea"})["failed"]["problem"]
    assert len(requested(user, {"want": "status"})["status"]["users"]) == 1
    user.close()


def test_another_program_on_the_socket_is_an_error(folder: Path) -> None:
    place = Folder.at(folder)
    place.prepare()
    with socket.socket(socket.AF_UNIX) as other_program:
        other_program.bind(str(place.control_socket))
        other_program.listen()

        def greet() -> None:
            with other_program.accept()[0] as caller:
                caller.sendall(b"220 mail ready\n")
                caller.recv(1000)

        greeting = threading.Thread(target=greet)
        greeting.start()
        with pytest.raises(FolderUnusable, match="no supervisor"):
            attach(place, ServerSettings(), MAX_WAIT_SECONDS)
        greeting.join()


def test_a_supervisor_without_users_ends(
    monkeypatch: pytest.MonkeyPatch, start_supervisor: Callable[..., Folder]
) -> None:
    monkeypatch.setattr(_supervisor, "_FIRST_USER_SECONDS", 0.0)
    place = start_supervisor()
    (supervisor,) = (one for one in threading.enumerate() if one.name == "supervisor")
    supervisor.join(MAX_WAIT_SECONDS)
    assert not supervisor.is_alive()
    assert ControlConnection.open(place.control_socket) is None


def test_a_supervisor_whose_folder_was_replaced_ends_without_touching_the_new_one(
    monkeypatch: pytest.MonkeyPatch, start_supervisor: Callable[..., Folder]
) -> None:
    monkeypatch.setattr(_supervisor, "_FOLDER_CHECK_INTERVAL", 0.01)
    place = start_supervisor()
    user = connected(place)
    requested(user, LEASE)
    place.supervisor_lock.unlink()
    place.supervisor_lock.touch()
    assert user.receive(MAX_WAIT_SECONDS) is None
    assert place.control_socket.exists()
    user.close()
