"""One Delta table: its log, its files and the one way to change it.

Guarantee: a commit adds and removes all its files or none, and of two writers with the same application id
that start from the same version, one fails: nothing is committed twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from toril.errors import CommitGone, LakeError, LakeTooNew, TableMissing
from toril.lake.tables import TableSpec

_VERSION_KEY: Final = "toril.schemaVersion"
_MANY_COMMITS: Final = 50  # beyond this number of commits, reading the log again is faster


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A Parquet file that lies in the table's folder and is (or becomes) part of it."""

    path: str  # relative to the table
    size: int
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a range of commits changed: new files, the last mark of each application, the writers' notes, old files."""

    files: list[DataFile]
    marks: dict[str, int]
    notes: list[dict[str, Any]]
    removed: list[str]  # paths of files whose rows were removed or replaced

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class LakeTable:
    """The log of one table, as of the moment it was opened; `refresh` moves it on."""

    def __init__(
        self, spec: TableSpec, url: str, storage: Mapping[str, str] | None, delta: DeltaTable
    ) -> None:
        self.spec = spec
        self.url = url
        self._storage = dict(storage or {})
        self.delta = delta
        self._check_version()
        self._marks: dict[str, int] = {}  # application → version, of those that were asked for
        self._marks_until = self.version

    @classmethod
    def open(cls, spec: TableSpec, url: str, storage: Mapping[str, str] | None, lake: str) -> LakeTable:
        """The existing table, or `TableMissing`."""
        try:
            delta = DeltaTable(url, storage_options=dict(storage) if storage else None)
        except TableNotFoundError:
            raise TableMissing(spec.name, lake) from None
        except DeltaError as error:
            problem = str(error).partition("\n")[0]
            raise LakeError(
                f"{spec.name} cannot be opened: {problem}; `toril pipeline check` says more"
            ) from error
        return cls(spec, url, storage, delta)

    @classmethod
    def open_or_create(cls, spec: TableSpec, url: str, storage: Mapping[str, str] | None) -> LakeTable:
        """The table, created empty if it is not there."""
        delta = DeltaTable.create(
            url,
            schema=spec.schema,
            mode="ignore",
            partition_by=list(spec.partition_by) or None,
            name=spec.name,
            configuration={_VERSION_KEY: str(spec.version)},
            storage_options=dict(storage) if storage else None,
            raise_if_key_not_exists=False,
        )
        log = cls(spec, url, storage, delta)
        log._add_missing_columns()
        return log

    def _check_version(self) -> None:
        found = int(self.delta.metadata().configuration.get(_VERSION_KEY, "1"))
        if found > self.spec.version:
            raise LakeTooNew(self.spec.name, found, self.spec.version)

    def _add_missing_columns(self) -> None:
        """A table that an older toril made gets the columns that were added since; its rows have nulls there."""
        known = {field.name for field in self.delta.schema().fields}
        missing = [field for field in Schema.from_arrow(self.spec.schema).fields if field.name not in known]
        if missing:
            self.delta.alter.add_columns(missing)
            self.delta.update_incremental()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def version(self) -> int:
        return int(self.delta.version())

    def refresh(self) -> LakeTable:
        self.delta.update_incremental()
        self._follow_marks()
        return self

    def committed(self, application: str) -> int:
        """The version last committed under that application id; −1 when there is none."""
        if application not in self._marks:
            # This reads the whole log, which takes seconds with a hundred queues.
            found = self.delta.transaction_version(application)
            self._marks[application] = -1 if found is None else int(found)
        return self._marks[application]

    def _follow_marks(self) -> None:
        until = self.version
        if until - self._marks_until > _MANY_COMMITS:
            self._marks = {}
        if self._marks:
            self._marks.update(self.changes(self._marks_until, until).marks)
        self._marks_until = until

    def files(self, **partition: str) -> list[DataFile]:
        """The files of the table, or of one partition."""
        actions = pa.table(self.delta.get_add_actions(flatten=False)).to_pylist()
        files = [_data_file(one) for one in actions]
        return [one for one in files if all(one.partition.get(k) == v for k, v in partition.items())]

    def dataset(self) -> Any:
        """The table as a pyarrow dataset whose files are read by pyarrow itself, without Python in its threads."""
        from toril.lake.storage import file_system

        system, root = file_system(self.url, self._storage)
        return self.delta.to_pyarrow_dataset(filesystem=fs.SubTreeFileSystem(root, system))

    def added_between(self, after: int, until: int) -> list[DataFile]:
        """Files that commits in (`after`, `until`] brought as new data; those of a compaction are not new."""
        return self.changes(after, until).files

    def changes(self, after: int, until: int) -> Changes:
        """What commits in (`after`, `until`] brought."""
        found = Changes(files=[], marks={}, notes=[], removed=[])
        for version in range(after + 1, until + 1):
            for action in self._actions(version):
                _note_action(found, action)
        return found

    def commit_time(self, version: int) -> int | None:
        """When a version was committed, in ms: two commits of one number have different times. None: it is gone."""
        try:
            actions = self._actions(version)
        except CommitGone:
            return None
        times = [one["commitInfo"].get("timestamp") for one in actions if "commitInfo" in one]
        return times[0] if times else None

    def _actions(self, version: int) -> list[dict[str, Any]]:
        try:
            text = self._read_log(f"{version:020d}.json")
        except FileNotFoundError:
            raise CommitGone(self.spec.name, version) from None
        # Not `splitlines`: the names of queues in an action may contain other separators of lines than a line feed.
        return [json.loads(line) for line in text.split("\n") if line.strip()]

    def _read_log(self, name: str) -> str:
        from toril.lake.storage import file_system

        system, root = file_system(self.url, self._storage)
        with system.open_input_stream(f"{root}/_delta_log/{name}") as stream:
            return bytes(stream.read()).decode()

    def commit(
        self,
        added: Sequence[DataFile],
        *,
        removed: Sequence[DataFile] = (),
        application: str,
        version: int,
        marks: Mapping[str, int] | None = None,
        note: Mapping[str, Any] | None = None,
        data_change: bool = True,
    ) -> None:
        """One transaction, tagged with (`application`, `version`) and with further marks of the same kind.

        Without `data_change` the added files have only rows that were in the table before.
        """
        tags = {**(marks or {}), application: version}
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [_add_action(one, now, data_change) for one in added]
        actions += [
            RemoveAction(one.path, data_change, now, one.size, dict(one.partition)) for one in removed
        ]
        self.delta.create_write_transaction(
            actions,
            mode="append",
            schema=self.spec.schema,
            partition_by=list(self.spec.partition_by) or None,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(name, number) for name, number in tags.items()],
                custom_metadata={"toril": json.dumps(note)} if note else None,
                # A conflict means another writer of the same application: retrying blindly could double rows.
                max_commit_retries=5,
            ),
        )
        self.refresh()


def _note_action(found: Changes, action: Mapping[str, Any]) -> None:
    if "add" in action and action["add"].get("dataChange", True):
        found.files.append(_file_of_action(action["add"]))
    elif "remove" in action and action["remove"].get("dataChange", True):
        found.removed.append(action["remove"]["path"])
    elif "txn" in action:
        found.marks[action["txn"]["appId"]] = int(action["txn"]["version"])
    elif "toril" in action.get("commitInfo", {}):
        found.notes.append(json.loads(action["commitInfo"]["toril"]))


def _add_action(file: DataFile, now: int, data_change: bool) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=dict(file.partition),
        modification_time=now,
        data_change=data_change,
        # The count only: deltalake takes extremes of some columns for a proof that the others are empty.
        stats=json.dumps({"numRecords": file.rows}),
    )


def _data_file(action: Mapping[str, Any]) -> DataFile:
    partition = action.get("partition") or action.get("partition_values") or {}
    return DataFile(
        path=action["path"],
        size=action["size_bytes"],
        rows=action["num_records"] or 0,
        partition={key: None if value is None else str(value) for key, value in partition.items()},
    )


def _file_of_action(add: Mapping[str, Any]) -> DataFile:
    stats = json.loads(add.get("stats") or "{}")
    return DataFile(
        path=add["path"],
        size=add["size"],
        rows=stats.get("numRecords", 0),
        partition=add.get("partitionValues") or {},
    )
