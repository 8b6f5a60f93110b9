"""Locks that end with their holder."""

from __future__ import annotations

import os
from pathlib import Path

from toril.server import _locks


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = _locks.try_lock(path)
    assert held is not None
    assert _locks.try_lock(path) is None
    assert _locks.lock_within(path, seconds=0.02) is None
    os.close(held)
    again = _locks.lock_within(path, seconds=1)
    assert again is not None
    os.close(again)


def test_the_holder_writes_its_process_id(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert _locks.holder_of(path) is None
    held = _locks.try_lock(path)
    assert held is not None
    assert _locks.holder_of(path) is None
    _locks.write_own_pid(held)
    assert _locks.holder_of(path) == os.getpid()
    os.close(held)


def test_a_lock_whose_file_was_replaced_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = _locks.try_lock(path)
    assert held is not None
    assert _locks.is_at(held, path)
    path.unlink()
    assert not _locks.is_at(held, path)
    path.touch()
    assert not _locks.is_at(held, path)
    os.close(held)
