"""The files of an embedded server's folder.

    <folder>/.gitignore          keeps the data out of the repository around it
    <folder>/data/               the append-only file, written by the server alone
    <folder>/server.log          the log of server and supervisor
    <folder>/password            of the server, once it had a TCP port; only the owner can read it
    <folder>/run/start.lock      held by the process that is starting a supervisor
    <folder>/run/supervisor.lock held by the supervisor while it runs
    <folder>/run/server.lock     held by the server while it runs, so that no two write the same data
    <folder>/run/control.sock    users connect here
    <folder>/run/valkey.sock     clients connect here

Guarantee: every process that names the folder, by whatever path, finds the same files. All of this can be deleted
when no server runs, except `data/`. A folder that another user owns or can write to is refused, and so is a symbolic
link of another user that leads to it; only the owner can enter `data/` and `run/`.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from toril.errors import FolderUnusable
from toril.server import _private_files

DEFAULT_FOLDER = "./.toril"
"""The folder of the default server."""

_SCHEME = "embedded:"

# sun_path has 104 bytes on macOS and 108 on Linux, with the closing NUL.
_LONGEST_SOCKET_PATH = 103

# Short, and the same in every session, unlike TMPDIR and XDG_RUNTIME_DIR: all users find the same sockets.
_SHORT_ROOT = Path("/tmp")  # noqa: S108 - the folder below is checked to be ours alone


_TRIES = 20  # Each fails only if another folder's supervisor ends at the same moment.

# Many times the size of a new append-only file, its manifest and some lines of log.
_PROBE_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of one server; `root` is absolute and free of symbolic links."""

    root: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Folder:
        """The folder at `path`, which may also be written as an address: `embedded:` or `embedded:/path`."""
        name = os.fspath(path)
        if name.startswith(_SCHEME):
            name = name.removeprefix(_SCHEME).removeprefix("//") or DEFAULT_FOLDER
        found = Path(name).expanduser()
        try:
            _private_files.check_links(found)
        except OSError as error:
            raise FolderUnusable(str(found), str(error)) from error
        return cls(found.resolve())

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "server.log"

    @property
    def start_lock(self) -> Path:
        return self.run / "start.lock"

    @property
    def supervisor_lock(self) -> Path:
        return self.run / "supervisor.lock"

    @property
    def server_lock(self) -> Path:
        return self.run / "server.lock"

    @property
    def control_socket(self) -> Path:
        return self._sockets() / "control.sock"

    @property
    def server_socket(self) -> Path:
        return self._sockets() / "valkey.sock"

    @property
    def url(self) -> str:
        return f"unix://{self._login()}{quote(str(self.server_socket))}"

    def tcp_url(self, port: int) -> str:
        """Returns the address on loopback."""
        return f"redis://{self._login()}127.0.0.1:{port}"

    @property
    def password(self) -> str | None:
        """The password of the server; None: it has had no TCP port, and file permissions protect its socket."""
        return _private_files.read_secret(self.root / "password")

    def create_password(self) -> None:
        """Creates a random password, unless there is one."""
        _private_files.create_secret(self.root / "password")

    def _login(self) -> str:
        password = self.password
        return f":{quote(password, safe='')}@" if password else ""

    def prepare(self) -> None:
        """Creates what is missing. Raises OSError if that is not possible, or if the folder is another user's."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _private_files.check_owned(self.root)
        for directory in (self.data, self.run):
            _private_files.make_private(directory)
        ignore = self.root / ".gitignore"
        if not ignore.exists():
            descriptor = _private_files.open_private(ignore, os.O_WRONLY | os.O_CREAT)
            with os.fdopen(descriptor, "w") as file:
                file.write("*\n")
        self._prepare_sockets()

    def open_log(self) -> int:
        """Returns a descriptor that appends to the log, which exists from then on."""
        return _private_files.open_private(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def clear_sockets(self) -> None:
        """Removes what `prepare` made outside of the folder. Only for the holder of the supervisor's lock."""
        if (sockets := self._sockets()) != self.run:
            with suppress(OSError):  # One of them is not empty: it stays.
                sockets.rmdir()
                sockets.parent.rmdir()

    def check_disk_space(self) -> None:
        """Raises OSError if no more data can be written to the disk."""
        probe = self.run / f"probe.{os.getpid()}"
        descriptor = _private_files.open_private(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(bytes(_PROBE_BYTES))
        finally:
            with suppress(OSError):
                probe.unlink()

    def log_tail(self, start: int = 0) -> str:
        """Returns the last lines of the log that were written after byte `start`."""
        try:
            with self.log.open("rb") as log:
                log.seek(start)
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-8:])

    def data_bytes(self) -> int:
        """Returns the size of the data on disk."""
        return sum(size_of(file) for file in self.data.rglob("*"))

    def _sockets(self) -> Path:
        if len(os.fsencode(self.run / "control.sock")) <= _LONGEST_SOCKET_PATH:
            return self.run
        name = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return _SHORT_ROOT / f"toril-{self._owner()}" / name

    def _owner(self) -> int:
        # The folder's owner, not the caller: root and the owner must use the same sockets.
        try:
            return self.root.stat().st_uid
        except OSError:
            return os.getuid()

    def _prepare_sockets(self) -> None:
        sockets = self._sockets()
        if sockets == self.run:
            return
        for tries_left in reversed(range(_TRIES)):
            try:
                for directory in (sockets.parent, sockets):
                    directory.mkdir(mode=0o700, exist_ok=True)
                    _check_private(directory, self._owner())
            except (FileNotFoundError, FileExistsError):
                # The supervisor of another folder has just removed the parent directory, which was empty.
                if not tries_left:
                    raise
            else:
                return


def size_of(file: Path) -> int:
    """Returns the bytes of one file; 0 if it was removed meanwhile, as files of a rewrite are."""
    try:
        found = file.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _check_private(directory: Path, owner: int) -> None:
    # Any user may create names in the shared folder first: a socket in another user's directory would belong to them.
    found = directory.lstat()
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid in {owner, os.getuid()}
    if not ours or found.st_mode & 0o022:
        raise PermissionError(
            f"{directory} belongs to another user; the folder's path is too long for a socket in it"
        )
