"""The settings of users, and how they are merged."""

from __future__ import annotations

import pytest

from toril.server._settings import Fsync, PortConflict, ServerSettings


@pytest.mark.parametrize(
    ("present", "wanted", "merged"),
    [
        (None, None, None),
        (None, 7000, 7000),
        (None, 0, 0),
        (7000, None, 7000),
        (7000, 0, 7000),
        (7000, 7000, 7000),
    ],
)
def test_a_port_once_given_stays(present: int | None, wanted: int | None, merged: int | None) -> None:
    assert ServerSettings(port=present).merged_with(ServerSettings(port=wanted)).port == merged


def test_two_different_ports_are_a_conflict() -> None:
    with pytest.raises(PortConflict, match="7000"):
        ServerSettings(port=7000).merged_with(ServerSettings(port=7001))


@pytest.mark.parametrize("one", ["no", "everysec", "always"])
def test_the_safest_fsync_is_taken_in_any_order(one: Fsync) -> None:
    for pair in ((one, "always"), ("always", one)):
        first, second = (ServerSettings(fsync=fsync) for fsync in pair)
        assert first.merged_with(second).fsync == "always"


def test_settings_are_the_same_after_the_way_to_the_supervisor() -> None:
    settings = ServerSettings(port=7000, fsync="always")
    assert ServerSettings.from_message(settings.as_message()) == settings


def test_the_server_always_persists_and_listens_on_loopback_only() -> None:
    words = ServerSettings().arguments()
    assert words[words.index("--appendonly") + 1] == "yes"
    assert words[words.index("--maxmemory-policy") + 1] == "noeviction"
    assert words[words.index("--bind") + 1] == "127.0.0.1"
    assert words[words.index("--port") + 1] == "0"


def test_the_server_may_have_large_pages() -> None:
    words = ServerSettings().arguments()
    assert words[words.index("--disable-thp") + 1] == "no"
