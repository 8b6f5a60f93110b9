"""Which engine a run uses: little is computed in the driver, because starting Spark would take longer.

Guarantee: what is counted is what the run reads: new events, events that are not refined yet, open jobs, and attempts
of the day whose figures change.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from toril.lake import TableMissing
from toril.lake.delta_table import DataFile
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline.bronze.stream_positions import TABLE, committed_position
from toril.spark.pipeline.context import PipelineContext
from toril.spark.pipeline.files.lineage import REFINED
from toril.spark.sources.positions import read_stream_states

_ATTEMPTS_PER_ROW: Final = 4  # attempts are only counted and summed: several cost what one event does


def fits_the_driver(context: PipelineContext, *, anew: bool = False) -> bool:
    """Whether a run, or a computation of silver and gold anew, is done in this process."""
    options = context.options
    if options.engine != "auto":
        return options.engine == "driver"
    if context.sessions.is_given or options.master is not None or options.checkpoint is not None:
        return False
    return (_bronze_rows(context) if anew else _new_rows(context)) <= options.driver_rows


def _bronze_rows(context: PipelineContext) -> int:
    return _rows(context, TABLE)


def _new_rows(context: PipelineContext) -> int:
    today = datetime.now(UTC).date().isoformat()
    attempts = _rows(context, "silver/attempts", day=today) // _ATTEMPTS_PER_ROW
    return _unread(context) + _unrefined(context) + _rows(context, "silver/jobs", phase="open") + attempts


def _unread(context: PipelineContext) -> int:
    log = context.lake.ensure(TABLE)
    with context.connect() as transport:
        found = context.queue_discovery().queues(transport)
        keys = {queue: keys.events for queue, keys in found.items() if isinstance(keys, QueueKeys)}
        states = read_stream_states(transport, keys)
    read = {queue: committed_position(log, queue).n or 0 for queue in states}
    return sum(
        min(state.length, max(0, state.added - read[queue])) if state.added is not None else state.length
        for queue, state in states.items()
    )


def _unrefined(context: PipelineContext) -> int:
    events = context.lake.ensure(TABLE)
    done = max(context.lake.ensure("silver/jobs").committed(REFINED), 0)
    return events.changes(done, events.version).rows if events.version > done else 0


def _rows(context: PipelineContext, name: str, **partition: str) -> int:
    try:
        files: list[DataFile] = context.lake.table(name).files(**partition)
    except TableMissing:
        return 0
    return sum(file.rows for file in files)
