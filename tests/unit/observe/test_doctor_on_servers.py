"""What the doctor says of servers that cannot be started here: old ones, full disks, crowded ones."""

from __future__ import annotations

import pytest

from toril.observe.doctor import _server
from toril.observe.doctor._finding import Finding


def said(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(one.check, one.level) for one in findings]


@pytest.mark.parametrize(
    ("info", "level"),
    [
        ({"redis_version": "6.0.16"}, "problem"),
        ({"redis_version": "6.2.14"}, "note"),
        ({"redis_version": "7.0.15"}, "ok"),
        ({"server_name": "valkey", "valkey_version": "9.1.0", "redis_version": "7.2.4"}, "ok"),
        ({"server_name": "valkey", "valkey_version": "7.1.0", "redis_version": "7.1.0"}, "problem"),
        ({}, "warning"),  # not known: never healthy
    ],
)
def test_versions_are_judged_by_what_toril_needs(info: dict[str, str], level: str) -> None:
    assert said(list(_server._version(info))) == [("version", level)]


def test_a_replica_without_its_primary_is_named() -> None:
    info = {"role": "slave", "master_link_status": "down"}
    assert said(list(_server._role(info))) == [("role", "problem"), ("role", "warning")]


def test_servers_with_nearly_all_clients_are_named() -> None:
    assert said(list(_server._clients({"connected_clients": "90", "maxclients": "100"}))) == [
        ("clients", "warning")
    ]
    assert said(list(_server._clients({"connected_clients": "9", "maxclients": "100"}))) == []


@pytest.mark.parametrize(
    ("info", "fsync", "levels"),
    [
        ({}, "always", ["ok"]),
        ({}, None, ["ok"]),
        ({}, "no", ["warning"]),
        ({"aof_last_write_status": "err"}, "everysec", ["ok", "problem"]),
    ],
)
def test_an_append_only_file_is_judged(info: dict[str, str], fsync: str | None, levels: list[str]) -> None:
    assert [one.level for one in _server._append_only(info, fsync)] == levels


@pytest.mark.parametrize(
    ("info", "points", "levels"),
    [
        ({}, "3600 1", ["warning"]),
        ({}, "", ["warning"]),
        ({}, None, ["warning"]),
        ({"rdb_last_bgsave_status": "err"}, "3600 1", ["warning", "problem"]),
    ],
)
def test_snapshots_are_judged(info: dict[str, str], points: str | None, levels: list[str]) -> None:
    assert [one.level for one in _server._snapshots(info, points)] == levels
