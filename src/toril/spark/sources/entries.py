"""Reading stream queues, list queues and their dead letters.

Guarantee: every entry becomes a row; one that is no envelope keeps its text in `raw` with empty columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from toril.commands.bulk_enqueue import rejects_key
from toril.commands.snapshot import list_page
from toril.commands.streams import StreamState, entries, stream_state
from toril.lake.tables import GAP_EVENT, REJECTS, TableSpec
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys
from toril.spark.sources.columns import TIME, assemble, constant, id_columns, text_column
from toril.transport import BlockingTransport

_PAGE: Final = 2_000
_json = msgspec.json.Decoder()


def read_entries(
    transport: BlockingTransport,
    queue: str,
    keys: ListKeys | StreamKeys,
    spec: TableSpec,
    after: str = "0-0",
    until: str = "+",
) -> Iterator[pa.Table]:
    """The entries of a queue, or of its dead letters when `spec` has them; those of streams in (`after`, `until`]."""
    dead = "dlq_reason" in spec.schema.names
    kind = "stream" if isinstance(keys, StreamKeys) else "list"
    if dead or isinstance(keys, StreamKeys):
        # Dead letters are a stream for both kinds: they are read from any place, not from an end.
        key = keys.dlq if dead else keys.base
        yield from read_stream_entries(transport, queue, key, spec, kind, after, until)
    else:
        yield from read_list(transport, queue, keys.queue, spec)


def read_stream_entries(
    transport: BlockingTransport,
    queue: str,
    key: str,
    spec: TableSpec,
    kind: str,
    after: str = "0-0",
    until: str = "+",
) -> Iterator[pa.Table]:
    """The entries of a stream in (`after`, `until`]."""
    while page := transport.run(entries(key, after, until, _PAGE)):
        after = page[-1][0].decode()
        ids = [entry[0].decode() for entry in page]
        yield entries_table(spec, queue, kind, ids, [_entry_text(entry[1]) for entry in page])


def _entry_text(flat: Sequence[bytes]) -> str:
    """The entry as one JSON object: the envelope, and beside it what was added to it."""
    fields = dict(zip(flat[::2], flat[1::2], strict=False))
    envelope = fields.pop(b"envelope", None)
    if envelope is not None and not fields:
        return envelope.decode(errors="replace")
    words = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
    inner = {} if envelope is None else _object(envelope.decode(errors="replace"))
    return msgspec.json.encode({**inner, **words}).decode()


def read_list(transport: BlockingTransport, queue: str, key: str, spec: TableSpec) -> Iterator[pa.Table]:
    """The elements of a list, from its head."""
    start = 0
    while page := transport.run(list_page(key, start, _PAGE)):
        ids = [str(start + row) for row in range(len(page))]
        yield entries_table(spec, queue, "list", ids, [one.decode(errors="replace") for one in page])
        start += len(page)


def read_rejects(
    transport: BlockingTransport,
    queue: str,
    keys: QueueKeys | ListKeys | StreamKeys,
    after: str = "0-0",
    until: str = "+",
) -> Iterator[pa.Table]:
    """Rows that could not become jobs of a queue; the first one has the number of older ones that were trimmed."""
    if after == "0-0":
        yield from _dropped_rejects(transport, queue, keys)
    while page := transport.run(entries(rejects_key(keys), after, until, _PAGE)):
        after = page[-1][0].decode()
        ids = pa.array([entry[0].decode() for entry in page], pa.string())
        fields = [dict(zip(entry[1][::2], entry[1][1::2], strict=False)) for entry in page]
        columns = {
            "queue": constant(queue, len(page)),
            "id": ids,
            "ts": id_columns(ids)[0],
            "reason": text_column([one.get(b"reason") for one in fields]),
            "row": text_column([one.get(b"row") for one in fields]),
        }
        yield assemble(REJECTS.schema, columns, len(page))


def _dropped_rejects(
    transport: BlockingTransport, queue: str, keys: QueueKeys | ListKeys | StreamKeys
) -> Iterator[pa.Table]:
    (state,) = transport.run_many([stream_state(rejects_key(keys))])
    dropped = (state.added or 0) - state.length if isinstance(state, StreamState) else 0
    if dropped > 0:
        reason = f"{GAP_EVENT}: {dropped} older rows were dropped"
        yield pa.Table.from_pylist([{"queue": queue, "id": "0-0", "reason": reason}], schema=REJECTS.schema)


def entries_table(
    spec: TableSpec, queue: str, kind: str, ids: Sequence[str], texts: Sequence[str]
) -> pa.Table:
    """Envelopes as columns."""
    envelopes = [_object(text) for text in texts]
    rows = len(texts)
    id_column = pa.array(ids, pa.string())
    columns: dict[str, object] = {
        "queue": constant(queue, rows),
        "kind": constant(kind, rows),
        "id": id_column,
        "raw": pa.array(texts, pa.string()),
        "snapshot_at": pa.repeat(pa.scalar(datetime.now(UTC), TIME), rows),
    }
    if ids and "-" in ids[0]:
        columns["ts"] = id_columns(id_column)[0]
    for name in ("job_id", "task_type", "dlq_reason", "last_error"):
        columns[name] = pa.array([_text(one.get(name)) for one in envelopes], pa.string())
    for name in ("attempts", "max_attempts"):
        columns[name] = pa.array([_number(one.get(name)) for one in envelopes], pa.int64())
    for name in ("payload", "meta"):
        columns[name] = pa.array([_json_text(one.get(name)) for one in envelopes], pa.string())
    columns["enqueue_ts"] = pa.array([_moment(_meta(one).get("enqueue_ts")) for one in envelopes], TIME)
    columns["dlq_ts"] = pa.array([_moment(one.get("dlq_ts")) for one in envelopes], TIME)
    return assemble(spec.schema, {k: v for k, v in columns.items() if k in spec.schema.names}, rows)


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = _json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _meta(envelope: Mapping[str, object]) -> Mapping[str, object]:
    meta = envelope.get("meta")
    return meta if isinstance(meta, dict) else {}


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else _json_text(value)


def _json_text(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _moment(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
