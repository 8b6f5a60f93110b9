"""Processes that name the same folder share one server."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from tests.integration.server.users import User, servers_of
from toril.errors import PortTaken
from toril.server import EmbeddedServer, lease, status

StartUser = Callable[..., User]


def test_two_processes_see_the_same_data(folder: Path, start_user: StartUser) -> None:
    first, second = start_user().ready(), start_user().ready()
    with redis.Redis.from_url(first.url) as writer, redis.Redis.from_url(second.url) as reader:
        writer.set("greeting", "hello")
        assert reader.get("greeting") == b"hello"
    assert len(servers_of(folder)) == 1


def test_eight_processes_that_start_at_once_start_one_server(folder: Path, start_user: StartUser) -> None:
    users = [start_user() for _ in range(8)]
    assert len({user.url for user in users}) == 1
    assert sorted(status(folder).users) == sorted(user.pid for user in users)
    assert len(servers_of(folder)) == 1
    assert (folder / "server.log").read_text().count("Ready to accept connections") == 1


def test_a_folder_is_the_same_by_whatever_name(folder: Path, start_user: StartUser) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    names = [folder, "x", "./x", f"embedded:{folder}", "embedded:./x", f"embedded://{folder}", link]
    users = [start_user(name, cwd=folder.parent) for name in names]
    assert {user.url for user in users} == {f"unix://{folder}/run/valkey.sock"}
    assert len(servers_of(folder)) == 1


def test_the_default_folder_is_in_the_working_directory(folder: Path, start_user: StartUser) -> None:
    folder.mkdir()
    user = start_user("embedded:", cwd=folder)
    assert user.url == f"unix://{folder}/.toril/run/valkey.sock"
    user.leaves()


def test_a_process_is_one_user_however_often_it_leases(folder: Path) -> None:
    first, second = lease(folder), lease(folder)
    assert status(folder).users == (os.getpid(),)
    first.release()
    first.release()
    assert status(folder).running
    second.release(wait=True)
    assert not status(folder).running


def test_threads_may_lease_at_once(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        leases = list(pool.map(lease, [folder] * 8))
    assert len(servers_of(folder)) == 1
    for held in leases:
        held.release(wait=True)


def test_a_later_user_can_add_a_port(folder: Path, start_user: StartUser) -> None:
    assert start_user().port is None
    with EmbeddedServer(folder, port=0) as server:
        assert server.tcp_url is not None
        with redis.Redis.from_url(server.tcp_url) as client:
            assert client.ping()
        assert start_user(port=server.port).port == server.port
        assert start_user(port=0).port == server.port


def test_a_second_port_is_refused_and_the_first_named(folder: Path) -> None:
    with (
        EmbeddedServer(folder, port=0) as server,
        pytest.raises(PortTaken, match=f"already listens on port {server.port}") as refusal,
        EmbeddedServer(folder, port=1),
    ):
        pass
    assert refusal.value.port == 1


def test_a_port_taken_by_another_program_is_refused_to_a_later_user(folder: Path, taken_port: int) -> None:
    with EmbeddedServer(folder), pytest.raises(PortTaken), EmbeddedServer(folder, port=taken_port):
        pass


def test_the_stricter_fsync_wins(folder: Path) -> None:
    with EmbeddedServer(folder) as server, redis.Redis.from_url(server.url) as client:
        with EmbeddedServer(folder, fsync="always"):
            assert client.config_get("appendfsync") == {"appendfsync": "always"}
        with EmbeddedServer(folder, fsync="no"):
            assert client.config_get("appendfsync") == {"appendfsync": "always"}


def test_the_server_persists_and_evicts_nothing(folder: Path) -> None:
    with EmbeddedServer(folder) as server, redis.Redis.from_url(server.url) as client:
        wanted = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "port": "0",
        }
        assert client.config_get(*wanted) == wanted


def test_a_forked_child_keeps_the_server_after_its_parent_has_left(
    folder: Path, start_user: StartUser
) -> None:
    parent = start_user().ready()
    child = int(
        parent.does("import os, signal; pid = os.fork(); print(pid, flush=True) if pid else signal.pause()")
    )
    server = servers_of(folder)
    parent.is_killed()
    assert server == servers_of(folder)
    assert status(folder).running
    os.kill(child, 9)


def test_a_forked_child_can_lease_for_itself(folder: Path, start_user: StartUser) -> None:
    parent = start_user().ready()
    leases_again = (
        "import os; pid = os.fork(); pid or print(lease(sys.argv[1]).url, flush=True); pid or os._exit(0)"
    )
    assert parent.does(leases_again) == parent.url
    assert parent.pid in status(folder).users
