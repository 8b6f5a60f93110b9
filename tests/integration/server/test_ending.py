"""The server ends with its last user or on request, and leaves its data and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import redis

from tests.integration.server.users import User, processes_of, servers_of, wait_until_gone
from toril.errors import Closed
from toril.server import EmbeddedServer, lease, status, stop

StartUser = Callable[..., User]

CHURN = (
    "import socket\n"
    "for _ in range(8):\n"
    "    with lease(sys.argv[1]) as again, socket.socket(socket.AF_UNIX) as client:\n"
    "        client.connect(again.url.removeprefix('unix://')); client.sendall(b'PING\\r\\n')\n"
    "        assert client.recv(7) == b'+PONG\\r\\n'\n"
    "print('done', flush=True)\n"
)


def test_the_server_ends_with_its_last_user(folder: Path, start_user: StartUser) -> None:
    first, second = start_user().ready(), start_user().ready()
    running = processes_of(folder)
    assert len(running) == 2  # a supervisor and its server
    first.leaves()
    assert servers_of(folder)
    second.leaves()
    assert wait_until_gone(running) == []


def test_kill_9_of_all_users_loses_nothing_and_leaves_no_process(folder: Path, start_user: StartUser) -> None:
    first, second = start_user().ready(), start_user().ready()
    running = processes_of(folder)
    with redis.Redis.from_url(first.url) as client:
        client.mset({f"job:{n}": n for n in range(1000)})
        client.set("last", "word")
        first.is_killed()
        second.is_killed()
    assert wait_until_gone(running) == []
    with EmbeddedServer(folder) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("last") == b"word"
        assert client.dbsize() == 1001


def test_after_the_block_the_folder_can_be_deleted_at_once(folder: Path) -> None:
    with EmbeddedServer(folder) as server, redis.Redis.from_url(server.url) as client:
        client.set("a", 1)
    assert servers_of(folder) == []
    shutil.rmtree(folder)


def test_stopping_one_of_two_users_leaves_the_server_to_the_other(
    folder: Path, start_user: StartUser
) -> None:
    other = start_user().ready()
    server = EmbeddedServer(folder).start()
    server.start()
    server.stop()
    server.stop()
    assert status(folder).users == (other.pid,)


def test_a_server_that_is_not_started_has_no_address(folder: Path) -> None:
    server = EmbeddedServer(folder)
    assert "not started" in repr(server)
    with pytest.raises(Closed, match=r"call start\(\)"):
        _ = server.url


def test_users_that_come_and_go_at_the_same_moment_always_get_a_server(
    folder: Path, start_user: StartUser
) -> None:
    users = [start_user().ready() for _ in range(3)]
    for user in users:
        user.begins("held.release()")
        user.begins(f"exec({CHURN!r})")
    assert [user.next_line() for user in users] == ["done"] * 3


def test_a_stop_on_request_ends_it_for_all_users_until_it_is_leased_again(
    folder: Path, start_user: StartUser
) -> None:
    user = start_user().ready()
    running = processes_of(folder)
    assert stop(folder)
    assert wait_until_gone(running) == []
    assert user.does("print(held._client.is_usable(), flush=True)") == "False"
    assert processes_of(folder) == []
    assert user.does("again = lease(sys.argv[1]); print(again.url, flush=True)") == user.url
    assert status(folder).users == (user.pid,)


def test_a_stop_without_a_server_returns_false_and_creates_nothing(folder: Path) -> None:
    assert not stop(folder)
    assert not status(folder).running
    assert not folder.exists()


def test_the_status_lists_users_and_settings(folder: Path, start_user: StartUser) -> None:
    user = start_user(fsync="always").ready()
    with EmbeddedServer(folder, port=0) as server:
        seen = server.status()
        assert (seen.running, seen.phase, seen.restarts, seen.fsync) == (True, "ready", 0, "always")
        assert (seen.folder, seen.url, seen.port) == (folder, server.url, server.port)
        assert sorted(seen.users) == sorted([user.pid, os.getpid()])
        assert [seen.pid] == [process.pid for process in servers_of(folder)]
        assert psutil.Process(seen.pid).ppid() == seen.supervisor_pid
        assert seen.version is not None
        assert seen.version.startswith("9.")
        assert seen.ready_at is not None
        assert seen.data_bytes > 0


def test_a_released_lease_is_shown_as_released(folder: Path) -> None:
    with lease(folder) as held:
        assert repr(held) == f"Lease('unix://{folder}/run/valkey.sock')"
    assert "released" in repr(held)
    assert held.tcp_url is None


def test_ctrl_c_in_the_terminal_of_a_user_does_not_reach_supervisor_and_server(
    folder: Path, start_user: StartUser
) -> None:
    start_user().ready()
    sessions = {os.getsid(process.pid) for process in processes_of(folder)}
    assert os.getsid(0) not in sessions
