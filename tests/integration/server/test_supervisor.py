"""The keeper's loop, run in a thread of the test so that each of its turns can be seen."""

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
from toril.server._attach import join
from toril.server._control import PROTOCOL, Conversation
from toril.server._folder import Folder
from toril.server._lifecycle import ServerLifecycle
from toril.server._settings import ServerSettings
from toril.server._supervisor import Supervisor

PATIENCE = 20.0
LEASE = {"want": "lease", "pid": 1, "port": None, "fsync": "everysec"}


@pytest.fixture
def keep(folder: Path) -> Iterator[Callable[..., Folder]]:
    """Starts a keeper for the test's folder; it must end by itself once its users are gone."""
    place = Folder(folder)
    place.prepare()
    lock = _locks.try_lock(place.keeper_lock)
    assert lock is not None
    threads: list[threading.Thread] = []

    def start(binary: Path | None = None, **settings: Any) -> Folder:
        upkeep = ServerLifecycle(place, binary or server_binary(), ServerSettings(**settings))
        keeper = Supervisor(place, upkeep, _supervisor.listen(place.keeper_socket), lock)
        threads.append(threading.Thread(target=keeper.run, name="keeper"))
        threads[0].start()
        return place

    yield start
    threads[0].join(PATIENCE)
    os.close(lock)
    assert not threads[0].is_alive()


def talk(place: Folder) -> Conversation:
    conversation = Conversation.open(place.keeper_socket)
    assert conversation is not None
    return conversation


def hear(conversation: Conversation, message: dict[str, Any]) -> dict[str, Any]:
    answer = conversation.ask(message, PATIENCE)
    assert answer is not None
    return answer


def test_a_lease_is_answered_when_the_server_is_ready_and_ends_with_its_connection(
    keep: Callable[..., Folder],
) -> None:
    place = keep(port=0, fsync="always")
    user = talk(place)
    answer = hear(user, LEASE)
    assert answer["ready"]["phase"] == "ready"
    assert answer["ready"]["url"] == place.url
    user.close()


def test_watchers_hear_of_users_who_come_and_go(keep: Callable[..., Folder]) -> None:
    place = keep()
    first, watcher, second = talk(place), talk(place), talk(place)
    number = hear(first, LEASE)["lease"]
    assert [user["lease"] for user in hear(watcher, {"want": "watch"})["status"]["users"]] == [number]
    hear(second, {**LEASE, "pid": 2})
    second.close()
    counts = []
    for _ in range(2):
        change = watcher.next(PATIENCE)
        assert change is not None
        counts.append(len(change["status"]["users"]))
    assert counts == [2, 1]
    first.close()
    while watcher.next(PATIENCE) is not None:
        pass
    watcher.close()


def test_a_dead_server_is_started_again_for_its_users(keep: Callable[..., Folder]) -> None:
    place = keep(fsync="always")
    user, newcomer = talk(place), talk(place)
    pid = hear(user, LEASE)["ready"]["pid"]
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    after = hear(newcomer, LEASE)["ready"]
    assert after["restarts"] == 1
    assert after["pid"] != pid
    assert "starting it again" in place.log.read_text()
    user.close()
    newcomer.close()


def test_a_server_that_cannot_be_executed_is_reported_to_who_waits(
    keep: Callable[..., Folder], folder: Path
) -> None:
    place = keep(binary=folder / "no-such-server")
    user = talk(place)
    assert "cannot be executed" in hear(user, LEASE)["failed"]["problem"]
    user.close()


def test_a_stop_is_announced_to_users(keep: Callable[..., Folder]) -> None:
    place = keep()
    user, other = talk(place), talk(place)
    hear(user, LEASE)
    assert other.ask({"want": "stop"}, PATIENCE) is None
    assert user.next(PATIENCE) == {"stopping": True}
    assert user.next(PATIENCE) is None
    user.close()
    other.close()


def test_strangers_are_refused_and_do_no_harm(keep: Callable[..., Folder]) -> None:
    place = keep()
    user = talk(place)
    hear(user, LEASE)
    unknown, older, babbler = talk(place), talk(place), socket.socket(socket.AF_UNIX)
    assert "does not know" in hear(unknown, {"want": "tea"})["failed"]["problem"]
    assert "another version" in hear(older, {"want": "status", "protocol": PROTOCOL + 1})["failed"]["problem"]
    with babbler:
        babbler.connect(str(place.keeper_socket))
        babbler.sendall(b"GET / HTTP/1.1\n")
        assert b"cannot read that" in babbler.recv(1000)
        assert babbler.recv(100) == b""
    assert hear(user, {"want": "status"})["status"]["phase"] == "ready"
    for conversation in (user, unknown, older):
        conversation.close()


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
def test_garbage_on_the_socket_costs_no_user_its_keeper(keep: Callable[..., Folder], words: bytes) -> None:
    place = keep()
    user = talk(place)
    hear(user, LEASE)
    with socket.socket(socket.AF_UNIX) as babbler:
        babbler.settimeout(PATIENCE)
        babbler.connect(str(place.keeper_socket))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            babbler.sendall(words)
            assert b"failed" in babbler.recv(1000)
    status = hear(user, {"want": "status"})["status"]
    assert (status["phase"], len(status["users"])) == ("ready", 1)
    user.close()


def test_a_user_that_says_something_odd_stays_a_user(keep: Callable[..., Folder]) -> None:
    place = keep()
    user = talk(place)
    hear(user, LEASE)
    assert "does not know" in hear(user, {"want": "tea"})["failed"]["problem"]
    assert len(hear(user, {"want": "status"})["status"]["users"]) == 1
    user.close()


def test_what_is_no_keeper_is_not_taken_for_one(folder: Path) -> None:
    place = Folder.at(folder)
    place.prepare()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(place.keeper_socket))
        stranger.listen()

        def greet() -> None:
            with stranger.accept()[0] as caller:
                caller.sendall(b"220 mail ready\n")
                caller.recv(1000)

        greeting = threading.Thread(target=greet)
        greeting.start()
        with pytest.raises(FolderUnusable, match="no keeper"):
            join(place, ServerSettings(), PATIENCE)
        greeting.join()


def test_a_keeper_nobody_comes_to_ends(monkeypatch: pytest.MonkeyPatch, keep: Callable[..., Folder]) -> None:
    monkeypatch.setattr(_supervisor, "_FIRST_USER_GRACE", 0.0)
    keep()


def test_a_keeper_whose_folder_was_replaced_ends_without_touching_the_new_one(
    monkeypatch: pytest.MonkeyPatch, keep: Callable[..., Folder]
) -> None:
    monkeypatch.setattr(_supervisor, "_LOOK_INTERVAL", 0.01)
    place = keep()
    user = talk(place)
    hear(user, LEASE)
    place.keeper_lock.unlink()
    place.keeper_lock.touch()
    assert user.next(PATIENCE) is None
    assert place.keeper_socket.exists()
    user.close()
