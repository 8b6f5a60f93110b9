"""Calls that have an effect once: a repeated one gets the first reply, for as long as the server remembers it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.commands.conftest import QueueDriver
from tests.servers import Server, ValkeyCluster
from toril.commands.command import Command, Replay, call, plain
from toril.commands.library import Script, own, own_names, remembered
from toril.commands.once import REMEMBERED_MS, Calls, once
from toril.errors import RedisError
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys
from toril.transport import BlockingTransport

COUNT = Script("count", "return redis.call('INCRBY', KEYS[1], ARGV[1])")


def counting(keys: QueueKeys, step: int = 1) -> Command[int]:
    return call(COUNT, (keys.toril("counter"),), [step], int)


def test_a_repeated_call_gets_the_first_reply(driver: QueueDriver) -> None:
    command = once(driver.keys, counting(driver.keys, 5))
    assert [driver.run(command) for _ in range(3)] == [5, 5, 5]
    assert driver.run(once(driver.keys, counting(driver.keys))) == 6


def test_a_call_may_be_sent_again(driver: QueueDriver) -> None:
    assert counting(driver.keys).replay is Replay.NEVER
    assert once(driver.keys, counting(driver.keys)).replay is Replay.SAFE


REPLIES = {
    "number": "return 3",
    "text": "return 'a'",
    "nothing": "return nil",
    "false": "return false",
    "status": "return redis.status_reply('GOOD')",
    "list": "return {'a', 2, {'b', false}, {}}",
    "bytes": r"return '\255\0\r\n'",
}


@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_of_every_kind_is_remembered_as_it_is(driver: QueueDriver, reply: str) -> None:
    script = Script("reply", REPLIES[reply])
    command = call(script, (driver.keys.toril("x"),), [], lambda found: found)
    repeated = once(driver.keys, command)
    assert driver.run(command) == driver.run(repeated) == driver.run(repeated)


def test_an_error_is_not_remembered(driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
    command = once(driver.keys, counting(driver.keys))
    raw_command("SET", driver.keys.toril("counter"), "no number")
    with pytest.raises(RedisError, match="not an integer"):
        driver.run(command)
    raw_command("DEL", driver.keys.toril("counter"))
    assert driver.run(command) == 1


def test_a_plain_command_can_be_called_once(driver: QueueDriver) -> None:
    added = once(driver.keys, plain(int, "SADD", driver.keys.toril("set"), "a", "b"))
    assert [driver.run(added), driver.run(added)] == [2, 2]


def test_of_calls_in_a_row_the_last_reply_is_remembered(
    driver: QueueDriver, raw_command: Callable[..., Any]
) -> None:
    calls = Calls(driver.keys)
    first, second = calls.once(counting(driver.keys)), calls.once(counting(driver.keys))
    assert [driver.run(first), driver.run(first), driver.run(second), driver.run(second)] == [1, 1, 2, 2]
    assert raw_command("HLEN", driver.keys.toril(f"reply:{calls.client}")) == 1
    with pytest.raises(RedisError, match="call 1 of this client is forgotten"):
        driver.run(first)  # delivered so late that the client has gone on
    assert driver.run(calls.once(counting(driver.keys))) == 3


def test_calls_at_once_are_remembered_each(driver: QueueDriver) -> None:
    calls = Calls(driver.keys, at_once=3)
    commands = [calls.once(counting(driver.keys)) for _ in range(3)]
    assert [driver.run(one) for one in (*commands, *commands)] == [1, 2, 3, 1, 2, 3]


def test_replies_are_remembered_for_ten_minutes(driver: QueueDriver, raw_command: Callable[..., Any]) -> None:
    calls = Calls(driver.keys)
    driver.run(calls.once(counting(driver.keys)))
    left = raw_command("PTTL", driver.keys.toril(f"reply:{calls.client}"))
    assert REMEMBERED_MS - 60_000 < left <= REMEMBERED_MS == 600_000


@pytest.mark.parametrize("make", [QueueKeys, ListKeys, StreamKeys])
def test_the_key_is_one_of_ours(prefix: str, make: Any) -> None:
    keys = make("paint", prefix, hash_tag=True)
    command = once(keys, plain(int, "DEL", keys.toril("x")))
    assert command.keys[-1].startswith(keys.toril("reply:"))
    assert "{paint}" in command.keys[-1]


def test_a_full_server_still_remembers_what_was_done(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey(maxmemory_policy="noeviction")
    keys = QueueKeys("paint", prefix, hash_tag=False)
    with BlockingTransport(server.url) as transport, server.client() as client:
        client.set(keys.toril("a"), 1)
        client.config_set("maxmemory", 1)
        command = once(keys, plain(int, "DEL", keys.toril("a"), keys.toril("b")))
        assert [transport.run(command), transport.run(command)] == [1, 1]
        nothing = once(keys, plain(int, "EXISTS", keys.toril("a")))  # cannot be remembered, and need not be
        assert [transport.run(nothing), transport.run(nothing)] == [0, 0]


def test_calls_work_on_a_cluster(cluster: ValkeyCluster, prefix: str) -> None:
    keys = QueueKeys("paint", prefix, hash_tag=True)
    with BlockingTransport(cluster.url) as transport:
        command = once(keys, counting(keys))
        assert [transport.run(command), transport.run(command)] == [1, 1]


def test_a_forked_child_is_another_client(driver: QueueDriver) -> None:
    calls = Calls(driver.keys)
    calls.once(counting(driver.keys))
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sender, f"{calls.once(counting(driver.keys)).keys[-1]}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(sender)
    told = os.read(receiver, 1000).decode()
    os.close(receiver)
    assert told.startswith(driver.keys.toril("reply:"))
    assert told != calls.once(counting(driver.keys)).keys[-1]


def test_every_script_of_ours_can_be_composed(driver: QueueDriver) -> None:
    for name in own_names():
        script = remembered(own(name))
        assert script.name == own(name).name
        loaded = driver.run(plain(bytes, "SCRIPT", "LOAD", script.text))
        assert loaded.decode() == script.sha1
