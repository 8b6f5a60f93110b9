"""Where a server's files are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from toril.server import folder as folder_module
from toril.server.folder import Folder, _check_private, size_of


def test_an_address_and_its_path_are_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Folder.at("embedded:./x") == Folder.at("x") == Folder.at(tmp_path / "x") == Folder.at("~/x")
    assert Folder.at("embedded:") == Folder.at(tmp_path / ".toril")


def test_sockets_are_in_the_folder_if_their_path_is_short_enough() -> None:
    assert Folder(Path("/data")).server_socket == Path("/data/run/valkey.sock")
    longest = "/" + "d" * (103 - len("//run/control.sock"))
    assert Folder(Path(longest)).control_socket.parent == Path(longest, "run")
    assert Folder(Path(longest + "d")).control_socket.parent != Path(longest + "d", "run")


def test_sockets_of_long_paths_are_short_distinct_and_always_the_same() -> None:
    one, other = Folder(Path("/a" * 100)), Folder(Path("/b" * 100))
    assert len(str(one.control_socket)) < 60
    assert one.control_socket == Folder(Path("/a" * 100)).control_socket
    assert one.control_socket != other.control_socket


def test_length_is_counted_in_bytes() -> None:
    assert Folder(Path("/" + "ü" * 50)).control_socket.parent != Path("/" + "ü" * 50, "run")


def test_odd_characters_are_quoted_in_the_address() -> None:
    assert Folder(Path("/a b?c#d%")).url == "unix:///a%20b%3Fc%23d%25/run/valkey.sock"


def test_a_socket_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    _check_private(tmp_path, tmp_path.stat().st_uid)
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="another user"):
        _check_private(tmp_path, tmp_path.stat().st_uid)


def test_a_link_in_place_of_the_socket_directory_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        _check_private(link, tmp_path.stat().st_uid)


def test_the_size_counts_files_and_not_what_vanished(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.prepare()
    (folder.data / "one").write_bytes(b"12345")
    assert folder.data_bytes() == 5
    assert size_of(folder.data / "gone") == 0


@pytest.fixture
def short_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "short"
    root.mkdir()
    monkeypatch.setattr(folder_module, "_SHORT_ROOT", root)
    return root


def test_the_directories_of_short_sockets_vanish_with_the_last_of_them(
    tmp_path: Path, short_root: Path
) -> None:
    one, two = (Folder.at(tmp_path / (letter * 120)) for letter in "ab")
    one.prepare()
    two.prepare()
    assert len(list(short_root.glob("*/*"))) == 2
    one.clear_sockets()
    assert [sockets.parent for sockets in short_root.glob("*/*")] == [two.server_socket.parent.parent]
    two.clear_sockets()
    assert list(short_root.iterdir()) == []


def test_servers_that_come_and_go_at_once_do_not_take_each_others_directories(
    tmp_path: Path, short_root: Path
) -> None:
    def come_and_go(letter: str) -> None:
        folder = Folder.at(tmp_path / (letter * 120))
        for _ in range(200):
            folder.prepare()
            assert folder.server_socket.parent.is_dir()
            folder.clear_sockets()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, "abcd"))
    assert list(short_root.iterdir()) == []
