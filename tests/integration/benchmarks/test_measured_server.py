"""The server that is measured has the settings of the embedded one."""

from __future__ import annotations

from typing import Literal

import pytest

from benchmarks.persistence import settings_of
from tests.servers.process import LARGE_PAGES
from toril.server._settings import ServerSettings


@pytest.mark.parametrize("mode", ["everysec", "always"])
def test_a_server_with_a_file_has_the_settings_of_the_embedded_one(
    mode: Literal["everysec", "always"],
) -> None:
    words = ServerSettings(fsync=mode).arguments()
    embedded = dict(zip(words[::2], words[1::2], strict=True))
    for name in ("--port", "--bind", "--daemonize", "--maxmemory-policy"):
        del embedded[name]  # of the place where it runs, or the server's default
    measured = LARGE_PAGES | settings_of(mode)
    assert {f"--{name}": value for name, value in measured.items()} == embedded
