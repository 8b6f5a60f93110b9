"""What a handler of batches returned, as the result or error of each job.

Guarantee: every job of the batch has exactly one result or error. A return value that leaves a job out, has it twice,
or has no such form is the error of the jobs concerned, which says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from toril.errors import PermanentError, TorilError, TransientError

Encode = Callable[[Any], bytes]
Settled = bytes | BaseException

_RETURN: Final = (
    "return one result per row, in order (a list, array or Series), or a table with the column job_id and the column "
    "result or error"
)


def results_of(returned: object, ids: Sequence[str], encode: Encode) -> list[Settled]:
    """The JSON of the result, or the error, of each job."""
    try:
        columns = _columns(returned)
        values = _values(returned) if columns is None else None
    except Exception as error:  # noqa: BLE001  # whatever an object of the application raises
        return _all(
            ids, f"what the handler returned cannot be read ({type(error).__name__}: {error}); {_RETURN}"
        )
    if columns is not None:
        return _by_id(columns, ids, encode)
    if values is None:
        kind = "nothing" if returned is None else f"a {type(returned).__name__}"
        return _all(ids, f"the handler returned {kind}; {_RETURN}")
    if len(values) != len(ids):
        return _all(ids, f"the handler returned {len(values)} results for {len(ids)} jobs; {_RETURN}")
    return [_encoded(value, encode) for value in values]


def error_of(text: Any, kind: Any = None, retry_after: Any = None) -> BaseException:
    """The error of a row: its category decides between a retry and failure. Without one, the worker's rule does."""
    if kind == "transient":
        return TransientError(str(text), retry_after=None if retry_after is None else float(retry_after))
    if kind == "permanent":
        return PermanentError(str(text))
    if kind is None:
        return Exception(str(text))
    return PermanentError(f"{text} (error_kind is {kind!r}: it must be transient or permanent)")


def is_missing(value: object) -> bool:
    """Whether a cell is empty: null, or the NaN that pandas writes for it."""
    return value is None or value is _pandas_na() or (isinstance(value, float) and value != value)


def _pandas_na() -> object:
    pandas = sys.modules.get("pandas")
    return None if pandas is None else pandas.NA


def _columns(returned: Any) -> Mapping[str, list[Any]] | None:
    """The columns of a table; None for anything else."""
    if isinstance(returned, (pa.Table, pa.RecordBatch)):
        return {name: returned.column(name).to_pylist() for name in returned.schema.names}
    if type(returned).__module__.partition(".")[0] == "pandas" and hasattr(returned, "columns"):
        return {str(name): returned[name].tolist() for name in returned.columns}
    return None


def _values(returned: Any) -> Sequence[Any] | None:
    """The values of a list, array or Series; None for anything else."""
    if isinstance(returned, (pa.Array, pa.ChunkedArray)):
        cells: list[Any] = returned.to_pylist()
        return cells
    if isinstance(returned, (list, tuple)):
        return returned
    if hasattr(returned, "tolist") and getattr(returned, "ndim", 0) >= 1:
        values: list[Any] = returned.tolist()
        return values
    return None


def _by_id(columns: Mapping[str, list[object]], ids: Sequence[str], encode: Encode) -> list[Settled]:
    if "job_id" not in columns or not {"result", "error"} & columns.keys():
        return _all(
            ids, f"the handler returned a table with the columns {', '.join(columns) or 'none'}; {_RETURN}"
        )
    rows: dict[str, int] = {}
    twice: set[str] = set()
    for at, job_id in enumerate(map(str, columns["job_id"])):  # a cell may be a number, or anything
        if job_id in rows:
            twice.add(job_id)
        rows[job_id] = at
    others = len(rows.keys() - set(ids))
    return [_of_row(columns, rows.get(one), one in twice, others, encode) for one in ids]


def _of_row(
    columns: Mapping[str, list[object]], at: int | None, twice: bool, others: int, encode: Encode
) -> Settled:
    if at is None:
        more = f", and {others} rows of other jobs" if others else ""
        return PermanentError(f"the handler returned no row for this job{more}; {_RETURN}")
    if twice:
        return PermanentError(f"the handler returned this job twice; {_RETURN}")
    error = _cell(columns, "error", at)
    if not is_missing(error):
        kind, retry_after = _cell(columns, "error_kind", at), _cell(columns, "retry_after", at)
        return _row_error(error, None if is_missing(kind) else kind, retry_after)
    return _encoded(_cell(columns, "result", at), encode)


def _row_error(error: object, kind: object, retry_after: object) -> BaseException:
    if isinstance(error, BaseException):
        return error
    try:
        return error_of(error, kind, None if is_missing(retry_after) else retry_after)
    except (TypeError, ValueError):
        return PermanentError(f"{error} (retry_after is {retry_after!r}: it must be seconds)")


def _cell(columns: Mapping[str, list[object]], name: str, at: int) -> object:
    return columns[name][at] if name in columns else None


def _encoded(value: object, encode: Encode) -> Settled:
    if isinstance(value, BaseException):
        return value
    try:
        return encode(value)
    except (TorilError, ValueError, TypeError) as error:
        return error


def _all(ids: Sequence[str], problem: str) -> list[Settled]:
    return [PermanentError(problem)] * len(ids)
