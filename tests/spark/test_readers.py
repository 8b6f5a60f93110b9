"""Reading the tables without Spark: documented programs end with zero, and a query does nothing but read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from tests.spark.readers import FILES, ROWS, make_lake, programs, run
from toril.lake import Lake, LakeError

_TIMES = 2  # `python -m tests.spark.readers` runs each thirty times


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("read")
    make_lake(place / "lake")
    return place


def test_the_document_shows_duckdb_pyarrow_pandas_and_polars() -> None:
    names = " ".join(programs())
    assert all(one in names for one in ("DuckDB", "pyarrow", "pandas", "polars", "deltalake")), names


@pytest.mark.parametrize("name", programs())
def test_a_documented_way_of_reading_answers_and_ends_with_zero(folder: Path, name: str) -> None:
    program, output = programs()[name]
    for _ in range(_TIMES):
        ended = run(program, folder)
        assert (ended.returncode, ended.stdout) == (0, output), ended.stderr


def test_no_thread_of_pyarrow_calls_python_to_open_the_files_of_a_table(folder: Path) -> None:
    """Such a thread aborts the process when it is late at the end of the interpreter."""
    dataset = Lake(folder / "lake").dataset("silver/attempts")
    assert isinstance(dataset.filesystem, fs.SubTreeFileSystem)
    assert isinstance(dataset.filesystem.base_fs, fs.LocalFileSystem)
    assert dataset.count_rows() == FILES * ROWS


@pytest.mark.parametrize(
    "sql",
    [
        "copy (select 1) to 'out.csv'",
        "copy silver.attempts to 'out.parquet'",
        "explain analyze copy (select 1) to '.tmp/out.csv'",
        "export database 'out'",
        "attach 'out.db'",
        "install httpfs",
        "load httpfs",
        "pragma memory_limit='1GB'",
        "set enable_external_access = true",
        "create table t as select 1",
        "drop view silver.attempts",
        "select 1; copy (select 1) to 'out.csv'",
        "select * from read_text('secret.txt')",
        "select * from 'secret.txt'",
        "select * from read_parquet('lake/silver/attempts/*/*.parquet')",
        "select * from glob('*')",
    ],
)
def test_a_query_writes_nothing_and_reads_no_file_beside_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.txt").write_text("secret")
    Lake("lake").ensure("silver/attempts")
    (tmp_path / ".tmp").mkdir()
    with pytest.raises(LakeError):
        Lake("lake").query(sql)
    assert sorted(one.name for one in tmp_path.rglob("*out*")) == []


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select outcome from silver.attempts group by all;", 2),
        ("with a as (from silver.attempts) select count(*) from a", 1),
        ("describe silver.attempts", 15),
        ("explain select count(*) from silver.attempts", 1),
        ("values (1), (2)", 2),
    ],
)
def test_what_only_reads_is_answered(folder: Path, sql: str, rows: int) -> None:
    assert Lake(folder / "lake").query(sql).num_rows == rows


def test_a_name_in_a_query_is_a_table_and_never_a_variable_of_the_program(folder: Path) -> None:
    secret = pa.table({"a": [1]})
    with pytest.raises(LakeError, match="does not exist"):
        Lake(folder / "lake").query("select * from secret")
    assert secret.num_rows == 1
