"""The marks of a table: how far each application has come, as its log says.

Guarantee: what is read here is what `LakeTable` reads. Logs in a local folder are read as text, without pyarrow and
deltalake, whose imports take longer than all else that a run with nothing new does. A log of which that would take
long, or that lacks commits which must be read, is refused with `LakeError`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Protocol

from toril.errors import CommitGone, LakeError, TableMissing

_LOG: Final = "_delta_log"
_MOST_COMMITS: Final = 5_000  # that are read of all tables together: a quarter of a second


class MarkedLog(Protocol):
    """The log of one table, as far as versions and marks go."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    def committed(self, application: str) -> int:
        """The version last committed under that application id; −1 when there is none."""

    def commit_time(self, version: int) -> int | None:
        """When a version was committed, in ms; None: it is gone."""


class MarkedLake(Protocol):
    """The tables of a lake by name."""

    @property
    def url(self) -> str: ...

    def table(self, name: str) -> MarkedLog:
        """The log of a table; `TableMissing` if it was never written."""


class LocalLogs:
    """The logs of a lake in a local folder, as they are when they are first asked for."""

    def __init__(self, folder: str) -> None:
        self.url = folder
        self._logs: dict[str, LocalLog] = {}
        self._left = _MOST_COMMITS

    def table(self, name: str) -> LocalLog:
        if name not in self._logs:
            self._logs[name] = LocalLog(self, name)
        return self._logs[name]

    def count_commit(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise LakeError(
                f"the logs in {self.url} have more than {_MOST_COMMITS} commits; run `toril pipeline maintain`"
            )


class LocalLog:
    """The log of one table, read from its end as far as is needed."""

    def __init__(self, lake: LocalLogs, name: str) -> None:
        self.name = name
        self._lake = lake
        self._folder = Path(lake.url, name, _LOG)
        self.version = self._last_version()
        self._marks: dict[str, tuple[int, int]] = {}  # application → its version, and that of the commit
        self._next = self.version  # the commit to be read next
        self._times: dict[int, int | None] = {}

    def _last_version(self) -> int:
        try:
            names = [one.name.partition(".") for one in self._folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            raise TableMissing(self.name, self._lake.url) from None
        commits = [int(number) for number, _, rest in names if number.isdecimal() and rest == "json"]
        checkpoints = [int(number) for number, _, rest in names if number.isdecimal() and rest != "json"]
        if not commits:
            raise TableMissing(self.name, self._lake.url)
        if max(checkpoints, default=0) > max(commits):
            raise LakeError(
                f"{self.name} has a checkpoint after its last commit; `toril pipeline check` says more"
            )
        return max(commits)

    def committed(self, application: str) -> int:
        return self._found(application)[0]

    def last_marked_version(self, application: str) -> int:
        """The commit that brought the last mark of an application; −1 when there is none."""
        return self._found(application)[1]

    def _found(self, application: str) -> tuple[int, int]:
        while application not in self._marks and self._next >= 0:
            self._read(self._next)
            self._next -= 1
        return self._marks.get(application, (-1, -1))

    def _read(self, version: int) -> None:
        self._lake.count_commit()
        for line in self._lines(version):
            if line.startswith('{"txn"'):
                mark = json.loads(line)["txn"]
                self._marks.setdefault(mark["appId"], (int(mark["version"]), version))

    def commit_time(self, version: int) -> int | None:
        if version not in self._times:
            self._times[version] = self._read_time(version)
        return self._times[version]

    def _read_time(self, version: int) -> int | None:
        try:
            lines = self._lines(version)
        except CommitGone:
            return None
        infos = [json.loads(line)["commitInfo"] for line in lines if line.startswith('{"commitInfo"')]
        return infos[0].get("timestamp") if infos else None

    def _lines(self, version: int) -> list[str]:
        try:
            return Path(self._folder, f"{version:020d}.json").read_text().splitlines()
        except FileNotFoundError:
            raise CommitGone(self.name, version) from None
