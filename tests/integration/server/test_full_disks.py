"""A full disk is reported at once. /dev/full and a file size limit simulate it."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.integration.server.users import User
from toril.errors import ServerStartFailed
from toril.server import EmbeddedServer, _locks, status, stop
from toril.server._attach import attach
from toril.server._settings import ServerSettings
from toril.server.folder import Folder

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


def test_an_end_that_loses_data_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedServer(folder) as server:
        fill_the_file_of(server)
    (said,) = [record for record in caplog.records if record.name == "toril.server"]
    assert said.levelname == "ERROR"
    assert "cannot write its append-only file" in said.message
    assert f"safe in {folder / 'data'}" in said.message
    assert "append-only file cannot be written" in (folder / "server.log").read_text()


def test_a_stop_on_request_that_loses_data_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedServer(folder) as server:
        fill_the_file_of(server)
        assert stop(folder)
    assert [record.levelname for record in caplog.records if "append-only file" in record.message] == [
        "ERROR"
    ]


def test_no_error_is_logged_if_the_server_has_other_users(
    folder: Path, caplog: pytest.LogCaptureFixture, start_user: Callable[..., User]
) -> None:
    with EmbeddedServer(folder) as server:
        other = start_user().ready()
        fill_the_file_of(server)
    assert [record for record in caplog.records if record.name == "toril.server"] == []
    other.leaves()


def test_an_ordinary_end_logs_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="toril.server"), EmbeddedServer(folder):
        assert status(folder).running
    assert caplog.records == []


def test_a_lock_without_a_process_id_is_held(folder: Path) -> None:
    path = Folder.at(folder).server_lock
    Folder.at(folder).prepare()
    held = _locks.try_lock(path)
    assert held is not None
    full = os.open(FULL, os.O_RDWR)
    try:
        _locks.write_own_pid(full)  # the disk is full: no id is written, and no error ends the server
        assert _locks.holder_of(path) is None and _locks.try_lock(path) is None
    finally:
        os.close(full)
        os.close(held)


def test_a_full_disk_is_reported_at_the_start(folder: Path) -> None:
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


def test_a_supervisor_that_cannot_run_is_reported_at_once(folder: Path) -> None:
    place = Folder.at(folder)
    place.prepare()
    place.log.mkdir()  # the supervisor's own words cannot be written: it ends before it answers
    started = time.monotonic()
    with pytest.raises(ServerStartFailed, match="the supervisor ends as soon as it is started") as failure:
        attach(place, ServerSettings(), 60)
    assert "IsADirectoryError" in failure.value.log
    assert time.monotonic() - started < SOON
