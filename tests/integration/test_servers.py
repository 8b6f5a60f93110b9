"""The servers that all other tests rely on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from tests.servers import LeftBehind, Server, ValkeyCluster, ValkeySentinel, guarded

if TYPE_CHECKING:
    from tests.conftest import TlsServer

STARTS_A_SERVER_AND_WAITS = """
from tests.servers import Server
server = Server.valkey().start()
print(server.pid, server.folder, flush=True)
input()
"""


def test_every_shared_server_answers(server: Server) -> None:
    with server.client() as client:
        assert client.ping()
    with redis.Redis.from_url(server.socket_url) as client:
        assert client.ping()


def test_redis7_speaks_tls_with_a_certificate_that_verifies(redis7_tls: TlsServer) -> None:
    with redis.Redis.from_url(redis7_tls.trusted_url) as client:
        assert client.ping()
    with (
        redis.Redis.from_url(redis7_tls.url) as distrustful,
        pytest.raises(redis.ConnectionError, match="certificate"),
    ):
        distrustful.ping()


def test_the_cluster_spreads_keys_over_three_nodes(cluster: ValkeyCluster, prefix: str) -> None:
    entry = cluster.nodes[0]
    with redis.RedisCluster(host="127.0.0.1", port=entry.port) as client:
        for number in range(60):
            client.set(f"{prefix}:{number}", number)
        sizes = [_size(node) for node in cluster.nodes]
    assert sum(sizes) == 60
    assert all(sizes)


def test_the_sentinel_promotes_the_replica_on_request() -> None:
    with ValkeySentinel() as sentinel:
        before = sentinel.primary_port()
        sentinel.fail_over()
        assert {before, sentinel.primary_port()} == {sentinel.primary.port, sentinel.replica.port}


def test_a_server_keeps_its_data_and_port_over_a_kill(start_valkey: Callable[..., Server]) -> None:
    server = start_valkey(appendonly="yes", appendfsync="always")
    with server.client() as client:
        client.set("k", "v")
    server.kill()
    server.start()
    with server.client() as client:
        assert client.get("k") == b"v"


def test_a_server_ends_when_its_starter_is_killed() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_SERVER_AND_WAITS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with starter:
        assert starter.stdout is not None
        pid, folder = starter.stdout.readline().split()
        gone = os.pidfd_open(int(pid))
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    _wait_for_end(gone)
    subprocess.run(["rm", "-rf", folder], check=True)


def test_a_thread_may_not_start_a_server() -> None:
    refusals: list[Exception] = []

    def start() -> None:
        try:
            Server.valkey().start()
        except RuntimeError as error:
            refusals.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(refusals[0])


def test_a_key_outside_the_namespace_is_found_and_removed(start_valkey: Callable[..., Server]) -> None:
    server = start_valkey()
    with pytest.raises(LeftBehind, match="stray"), guarded([server], "mine"), server.client() as client:
        client.mset({"mine:a": 1, "{mine:q}:b": 1, "stray": 1})
    assert _size(server) == 0


def test_an_open_connection_is_found(start_valkey: Callable[..., Server]) -> None:
    server = start_valkey()
    with server.client() as client, pytest.raises(LeftBehind, match="forgotten"), guarded([server], "mine"):
        client.client_setname("forgotten")


def _size(server: Server) -> int:
    with server.client() as client:
        return int(client.dbsize())


def _wait_for_end(pidfd: int) -> None:
    try:
        readable, _, _ = select.select([pidfd], [], [], 10)
        assert readable, "the server outlived its starter"
    finally:
        os.close(pidfd)
