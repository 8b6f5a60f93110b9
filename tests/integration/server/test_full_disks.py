"""A disk that takes no more data: said at once, and never silent. /dev/full and a limit stand for it."""

from __future__ import annotations

import logging
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from toril.errors import ServerStartFailed
from toril.server import EmbeddedServer, status, stop
from toril.server._attach import join
from toril.server._folder import Folder
from toril.server._settings import ServerSettings

FULL = Path("/dev/full")
SOON = 20.0  # seconds: far below the time-out of a start, far above what a busy machine needs


def fill_the_file_of(server: EmbeddedServer) -> None:
    """Lets the server's next append-only file lead to a device that is always full."""
    appended = Path(server.path) / "data/appendonlydir/appendonly.aof.2.incr.aof"
    appended.symlink_to(FULL)
    with redis.Redis.from_url(server.url) as client:
        client.set("before", 1)
        client.bgrewriteaof()
        while client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.01)
        client.set("after", 1)
        while client.info("persistence")["aof_last_write_status"] != "err":
            time.sleep(0.01)


def test_an_end_that_loses_something_is_not_silent(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedServer(folder) as server:
        fill_the_file_of(server)
    (said,) = [record for record in caplog.records if record.name == "toril.server"]
    assert said.levelname == "ERROR"
    assert "cannot write its append-only file" in said.message
    assert f"safe in {folder / 'data'}" in said.message
    assert "append-only file cannot be written" in (folder / "server.log").read_text()


def test_a_stop_on_request_that_loses_something_is_not_silent(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedServer(folder) as server:
        fill_the_file_of(server)
        assert stop(folder)
    assert [record.levelname for record in caplog.records if "append-only file" in record.message] == [
        "ERROR"
    ]


def test_who_leaves_a_server_to_others_is_not_alarmed(
    folder: Path, caplog: pytest.LogCaptureFixture, start_user
) -> None:
    with EmbeddedServer(folder) as server:
        other = start_user().ready()
        fill_the_file_of(server)
    assert [record for record in caplog.records if record.name == "toril.server"] == []
    other.leaves()


def test_an_ordinary_end_says_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="toril.server"), EmbeddedServer(folder):
        assert status(folder).running
    assert caplog.records == []


def test_a_lock_that_cannot_be_signed_holds_all_the_same(folder: Path) -> None:
    Folder.at(folder).prepare()
    for name in ("run/server.lock", "server.log"):
        (folder / name).symlink_to(FULL)
    with EmbeddedServer(folder) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()


def test_a_server_that_finds_no_room_says_so_at_once(folder: Path) -> None:
    Folder.at(folder).prepare()
    program = f"from toril.server import EmbeddedServer; EmbeddedServer({str(folder)!r}).start()"
    started = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=50,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert time.monotonic() - started < SOON
    # Whatever else cannot write its files at the end, such as a measurement of coverage, may speak after it.
    said = [line for line in run.stderr.splitlines() if line.startswith("toril.errors.")]
    assert said[0].startswith(f"toril.errors.DiskFull: {folder}: [Errno 27]")
    assert said[0].endswith("free some space on its disk")


def test_a_keeper_that_cannot_live_is_told_of_at_once(folder: Path) -> None:
    place = Folder.at(folder)
    place.prepare()
    place.log.mkdir()  # the keeper's own words cannot be written: it ends before it answers
    started = time.monotonic()
    with pytest.raises(ServerStartFailed, match="the keeper ends as soon as it is started") as failure:
        join(place, ServerSettings(), 60)
    assert "IsADirectoryError" in failure.value.log
    assert time.monotonic() - started < SOON
