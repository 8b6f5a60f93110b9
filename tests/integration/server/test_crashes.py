"""What users notice when the server or its supervisor is killed: a pause."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import redis

from tests.integration.server.users import User, processes_of, servers_of, wait_until_gone
from toril.server import EmbeddedServer, lease, status

StartUser = Callable[..., User]


def kill_and_wait(pid: int | None, how: signal.Signals = signal.SIGKILL) -> None:
    assert pid is not None
    process = psutil.Process(pid)
    process.send_signal(how)
    assert wait_until_gone([process]) == []


def test_a_killed_server_comes_back_with_its_data_at_the_same_address(folder: Path) -> None:
    with EmbeddedServer(folder, port=0, fsync="always") as server:
        before = status(folder)
        with redis.Redis.from_url(server.url) as client:
            client.mset({f"job:{n}": n for n in range(1000)})
        kill_and_wait(before.pid)
        with lease(folder) as again:  # returns when the server answers
            after = status(folder)
            assert (again.url, again.port) == (server.url, server.port)
        assert (after.restarts, after.supervisor_pid) == (1, before.supervisor_pid)
        assert after.pid != before.pid
        assert server.tcp_url is not None
        for url in (server.url, server.tcp_url):
            with redis.Redis.from_url(url) as client:
                assert client.dbsize() == 1000


def test_a_server_that_is_killed_again_and_again_comes_back_each_time(folder: Path) -> None:
    with EmbeddedServer(folder):
        for _ in range(3):
            kill_and_wait(status(folder).pid)
            lease(folder).release()
        assert status(folder).restarts == 3


def test_when_the_supervisor_is_killed_a_user_starts_supervisor_and_server_again(
    folder: Path, start_user: StartUser
) -> None:
    user = start_user(port=0).ready()
    with redis.Redis.from_url(user.url) as client:
        client.set("a", 1)
    before, running = status(folder), processes_of(folder)
    kill_and_wait(before.supervisor_pid)
    assert "has ended" in user.next_line()
    assert "answers again" in user.next_line()
    assert wait_until_gone(running) == []
    after = status(folder)
    assert (after.users, after.url, after.port) == ((user.pid,), before.url, user.port)
    with redis.Redis.from_url(user.url) as client:
        assert client.get("a") == b"1"


def test_a_supervisor_that_is_terminated_while_it_has_users_is_replaced(
    folder: Path, start_user: StartUser
) -> None:
    users = [start_user().ready(), start_user().ready()]
    kill_and_wait(status(folder).supervisor_pid, signal.SIGTERM)
    for user in users:
        assert "has ended" in user.next_line()
        assert "answers again" in user.next_line()
    assert sorted(status(folder).users) == sorted(user.pid for user in users)
    assert len(servers_of(folder)) == 1


def test_when_users_and_supervisor_are_killed_together_no_process_is_left(
    folder: Path, start_user: StartUser
) -> None:
    user = start_user().ready()
    running, supervisor = processes_of(folder), status(folder).supervisor_pid
    assert supervisor is not None
    os.kill(supervisor, signal.SIGSTOP)  # so that it cannot react to the death of its user
    user.is_killed()
    os.kill(supervisor, signal.SIGKILL)
    assert wait_until_gone(running) == []


def test_a_server_that_outlived_its_supervisor_is_ended_before_the_next_one_starts(
    folder: Path, start_user: StartUser
) -> None:
    user = start_user().ready()
    seen = status(folder)
    with redis.Redis.from_url(user.url, socket_timeout=None) as client:
        connection = client.connection_pool.get_connection()
        # A server in an endless script cannot obey the signal that its supervisor's death sends.
        connection.send_command("EVAL", "while true do end", 0)
        user.is_killed()
        kill_and_wait(seen.supervisor_pid)
        [leftover] = servers_of(folder)
        assert leftover.pid == seen.pid
        with EmbeddedServer(folder):
            assert wait_until_gone([leftover]) == []
            assert len(servers_of(folder)) == 1
        connection.disconnect()


def test_a_power_cut_leaves_nothing_that_prevents_a_start(folder: Path, start_user: StartUser) -> None:
    user = start_user().ready()
    with redis.Redis.from_url(user.url) as client:
        client.set("kept", 1)
        client.set("torn", "x" * 1000)
    seen, running = status(folder), processes_of(folder)
    assert seen.supervisor_pid is not None
    assert seen.pid is not None
    os.kill(seen.supervisor_pid, signal.SIGSTOP)
    for pid in (user.pid, seen.pid, seen.supervisor_pid):
        os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(running) == []
    assert (folder / "run" / "control.sock").exists()
    [written] = (folder / "data").rglob("*.incr.aof")
    os.truncate(written, written.stat().st_size - 100)
    with EmbeddedServer(folder) as server, redis.Redis.from_url(server.url) as client:
        assert client.keys() == [b"kept"]


def test_a_user_killed_while_it_waits_for_the_server_leaves_nothing(
    folder: Path, start_user: StartUser
) -> None:
    user = start_user()
    while not (folder / "run" / "control.sock").exists():
        assert user.process.poll() is None
    user.is_killed()
    assert wait_until_gone(processes_of(folder)) == []
