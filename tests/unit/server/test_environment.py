"""The environment in which the server runs."""

from __future__ import annotations

import os

import pytest

from toril.server.binary import server_environment


def test_the_allocator_is_set_for_deep_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    tunables = server_environment()["GLIBC_TUNABLES"]
    assert "tcache_count" in tunables
    assert "hugetlb=1" in tunables
    assert "GLIBC_TUNABLES" not in os.environ


def test_a_users_own_setting_of_the_allocator_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    assert server_environment()["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=1"
