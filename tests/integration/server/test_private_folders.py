"""Folders that another user has prepared, and the password of a server with a TCP port."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import psutil
import pytest
import redis

from toril import Queue
from toril.errors import EmbeddedServerFailed
from toril.server import EmbeddedServer, lease
from toril.server.folder import Folder

NOBODY = 65534


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def folder_of_another_user(tmp_path: Path) -> Path:
    """Root gives a folder away; another user takes one of root's."""
    if os.geteuid() != 0:
        return Path("/usr/share")
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    return folder


def test_a_folder_of_another_user_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    folder = folder_of_another_user(tmp_path)
    before = sorted(folder.iterdir())
    with pytest.raises(EmbeddedServerFailed, match="belongs to another user"):
        lease(folder)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("path", ["link", "link/below", "own-link", "below/../link"])
def test_a_symbolic_link_of_another_user_leads_to_no_folder(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner would choose in which folder of this user a server writes."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "below").mkdir()
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "own-link").symlink_to("link")
    if os.geteuid() == 0:
        os.lchown(tmp_path / "link", NOBODY, NOBODY)
    else:  # only root can give a link away; another user may meet one of ours
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    with pytest.raises(EmbeddedServerFailed, match=r"symbolic link .*/link belongs to another user"):
        lease(tmp_path / path)
    assert list(victim.iterdir()) == []


def test_own_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "one").symlink_to("here/../two")
    (tmp_path / "two").symlink_to(tmp_path / "here")
    assert Folder.at(tmp_path / "one" / "folder").root == tmp_path.resolve() / "here" / "folder"


@pytest.mark.parametrize("part", ["", "data", "run"])
def test_a_folder_to_which_others_can_write_is_refused(folder: Path, part: str) -> None:
    (folder / part).mkdir(parents=True)
    (folder / part).chmod(0o770)
    with pytest.raises(EmbeddedServerFailed, match="other users can write"):
        lease(folder)


def test_parts_that_others_can_read_are_closed(folder: Path) -> None:
    for part in ("data", "run"):
        (folder / part).mkdir(parents=True)
        (folder / part).chmod(0o755)
    with EmbeddedServer(folder):
        assert {mode_of(folder / part) for part in ("data", "run")} == {0o700}
        assert mode_of(folder / "server.log") == 0o600


@pytest.mark.parametrize(
    "name",
    ["run/start.lock", "run/supervisor.lock", "run/server.lock", "server.log", ".gitignore", "password"],
)
def test_a_symbolic_link_in_place_of_a_file_is_not_followed(folder: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    (folder / "run").mkdir(parents=True)
    (folder / "run").chmod(0o700)
    if name == ".gitignore":
        (folder / name).symlink_to(tmp_path / "missing")
    else:
        (folder / name).symlink_to(victim)
    with pytest.raises(EmbeddedServerFailed):
        lease(folder, port=0, timeout=5)
    assert victim.read_text() == "precious" and not (tmp_path / "missing").exists()


@pytest.mark.parametrize("part", ["data", "run"])
def test_a_symbolic_link_in_place_of_a_folder_is_refused(folder: Path, tmp_path: Path, part: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.mkdir()
    (folder / part).symlink_to(elsewhere)
    with pytest.raises(EmbeddedServerFailed, match="not a folder"):
        lease(folder)
    assert list(elsewhere.iterdir()) == []


def test_a_port_needs_the_random_password_of_a_private_file(folder: Path) -> None:
    with EmbeddedServer(folder, port=0) as server:
        port = server.port
        assert port is not None and server.tcp_url is not None
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with redis.Redis.from_url(server.tcp_url) as known:
            assert known.ping() is True
        password = (folder / "password").read_text().strip()
        assert len(password) > 30 and mode_of(folder / "password") == 0o600
        running = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
        assert any(str(folder) in line for line in running)
        assert not any(password in line for line in running)


def test_a_given_password_is_used_and_stays(folder: Path) -> None:
    folder.mkdir()
    descriptor = os.open(folder / "password", os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(descriptor, b"chosen%/@word\n")
    os.close(descriptor)
    for _ in range(2):
        with EmbeddedServer(folder, port=0) as server:
            assert server.port is not None and server.tcp_url is not None
            with redis.Redis(port=server.port, password="chosen%/@word") as client:
                assert client.ping() is True
            with redis.Redis.from_url(server.tcp_url) as client:
                assert client.ping() is True


def test_a_password_that_others_can_read_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "password").write_text("open\n")
    (folder / "password").chmod(0o644)
    with pytest.raises((EmbeddedServerFailed, PermissionError), match="other users can read"):
        lease(folder, port=0, timeout=5)


def test_without_a_port_there_is_no_password(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        assert Folder.at(folder).password is None and server.url == f"unix://{folder}/run/valkey.sock"


async def test_a_port_that_is_added_later_cuts_nobody_off(folder: Path) -> None:
    async with Queue("emails", redis=f"embedded:{folder}") as queue:
        await queue.add("send", {})
        with await asyncio.to_thread(lease, folder, port=0) as second:
            await queue.add("send", {})
            # All connections are cut, so that the queue has to log in anew.
            assert second.tcp_url is not None
            with redis.Redis.from_url(second.tcp_url) as client:
                client.client_kill_filter(_type="normal", skipme=True)
            await queue.add("send", {})
            assert (await queue.get_job_counts()).waiting == 3


def test_a_restarted_server_keeps_its_password(folder: Path) -> None:
    with EmbeddedServer(folder, port=0) as server:
        before = server.url
    with EmbeddedServer(folder) as server:
        assert server.url == before
        with redis.Redis.from_url(server.url) as client:
            assert client.ping() is True
