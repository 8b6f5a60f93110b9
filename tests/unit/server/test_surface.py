"""The names that others rely on, and the errors they meet."""

from __future__ import annotations

import errno
import os
import pickle

import pytest

import toril.server
from toril import errors
from toril.errors import DiskFull, EmbeddedServerFailed
from toril.server._failures import from_os, from_supervisor


def test_the_public_names_are_these() -> None:
    assert toril.server.__all__ == [
        "DEFAULT_FOLDER",
        "EmbeddedServer",
        "Lease",
        "ServerStatus",
        "lease",
        "server_binary",
        "status",
        "stop",
    ]
    for name in toril.server.__all__:
        assert getattr(toril.server, name) is not None


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        _ = toril.server.Server


def test_the_binary_is_there_and_runs() -> None:
    assert toril.server.server_binary().name == "valkey-server"


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ({"kind": "folder", "problem": "busy"}, errors.FolderUnusable),
        ({"kind": "too-new", "problem": "version 99"}, errors.FolderTooNew),
        ({"kind": "port", "problem": "taken", "port": 7000}, errors.PortTaken),
        ({"kind": "start", "problem": "it ended", "log": "last words"}, errors.ServerStartFailed),
        ({}, errors.ServerStartFailed),
    ],
)
def test_every_failure_that_a_supervisor_reports_has_its_error(
    failure: dict[str, object], kind: type[EmbeddedServerFailed]
) -> None:
    error = from_supervisor("/x", failure)
    assert type(error) is kind
    assert str(failure.get("problem", "refused")) in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_server_that_is_late_is_also_a_timeout() -> None:
    assert isinstance(errors.ServerNotReady("/x", 3), TimeoutError)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_distinguished_from_a_folder_that_may_not_be_written(number: int) -> None:
    full = from_os("/data/x", OSError(number, os.strerror(number)))
    assert isinstance(full, DiskFull)
    assert str(full).endswith("free some space on its disk")
    closed = from_os("/data/x", OSError(errno.EACCES, os.strerror(errno.EACCES)))
    assert not isinstance(closed, DiskFull)
    assert str(closed).endswith("give a folder that you may write to")
