"""Whether a run would find anything new: the positions of Redis and the marks of the tables are compared.

Guarantee: True only if every step of a run would find nothing to do. Nothing is written, and neither Spark nor pyarrow
is imported: their imports take longer than the comparison. False where that cannot be known: the lake is not a local
folder, its logs are long, or a worker has a report, which only its time could tell from the last one.
"""

from __future__ import annotations

from typing import Final

from toril.commands.command import plain
from toril.errors import LakeError
from toril.lake.marked_log import LocalLogs
from toril.lake.storage import is_local
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline.bronze.entry_sources import new_sources
from toril.spark.pipeline.bronze.stream_positions import TABLE as EVENTS
from toril.spark.pipeline.bronze.stream_positions import committed_position
from toril.spark.pipeline.context import PipelineContext
from toril.spark.pipeline.files.lineage import (
    ALERTED,
    FIGURED,
    GAPS,
    HASHES,
    RECONCILED,
    REFINED,
    REFINED_HASHES,
    rolled_back,
)
from toril.spark.sources.positions import end_of, read_stream_states
from toril.transport import BlockingTransport

_HASHED: Final = "bronze/jobs"
_SILVER: Final = ("silver/attempts", "silver/gaps", "silver/jobs")
_FIGURES: Final = ("gold/queue_minute", "gold/queue_hour", "gold/errors")


def is_up_to_date(context: PipelineContext) -> bool:
    """Whether the tables have all that Redis holds, and each table all of those that it is made of."""
    if not is_local(context.lake_url):
        return False
    logs = LocalLogs(context.lake_url)
    try:
        if not _layers_agree(logs):
            return False
        with context.connect() as transport:
            return not _has_new_events(context, logs, transport) and not _has_new_entries(
                context, logs, transport
            )
    except (LakeError, OSError, ValueError):  # the run itself says what is wrong with a table
        return False


def _layers_agree(logs: LocalLogs) -> bool:
    return all(
        (
            next(rolled_back(logs), None) is None,
            _has_hashes(logs),
            _is_refined(logs),
            _has_figures(logs),
        )
    )


def _has_hashes(logs: LocalLogs) -> bool:
    """Hashes and log lines of all events are read, and the jobs of all gaps."""
    version, jobs = logs.table(EVENTS).version, logs.table(_HASHED)
    marks = [logs.table(name).committed(HASHES) for name in (_HASHED, "bronze/logs")]
    return marks == [version, version] and jobs.committed(GAPS) <= max(jobs.committed(RECONCILED), 0)


def _is_refined(logs: LocalLogs) -> bool:
    """Commits of bronze/jobs without hashes only put files together."""
    last, tables = logs.table(_HASHED).last_marked_version(HASHES), [logs.table(name) for name in _SILVER]
    reached = {(table.committed(REFINED), table.committed(REFINED_HASHES)) for table in tables}
    return len(reached) == 1 and all(events >= 0 and hashes >= last for events, hashes in reached)


def _has_figures(logs: LocalLogs) -> bool:
    minutes, alerts = logs.table("gold/queue_minute"), logs.table("gold/alerts")
    links = [(name, "silver/attempts") for name in _FIGURES] + [("gold/workers", "bronze/worker_reports")]
    return all(
        logs.table(source).version <= max(logs.table(made).committed(FIGURED), 0) for made, source in links
    ) and max(minutes.committed(FIGURED), 0) <= max(alerts.committed(ALERTED), 0)


def _has_new_events(context: PipelineContext, logs: LocalLogs, transport: BlockingTransport) -> bool:
    queues = {
        queue: keys
        for queue, keys in context.queue_discovery().queues(transport).items()
        if isinstance(keys, QueueKeys)
    }
    states = read_stream_states(transport, {queue: keys.events for queue, keys in queues.items()})
    events = logs.table(EVENTS)
    if any(end_of(state) != committed_position(events, queue) for queue, state in states.items()):
        return True
    return any(_has_reports(transport, keys) for keys in queues.values())


def _has_reports(transport: BlockingTransport, keys: QueueKeys) -> bool:
    """Whether a worker reports; the names of those that ended without a word stay for a while."""
    names = transport.run(plain(list, "ZRANGE", keys.toril("workers"), 0, -1))
    words = [name.decode(errors="replace") for name in names]
    found = transport.run_many([plain(int, "EXISTS", keys.toril(f"worker:{name}")) for name in words])
    return any(one != 0 for one in found)  # an error is not 0 either


def _has_new_entries(context: PipelineContext, logs: LocalLogs, transport: BlockingTransport) -> bool:
    if not context.options.streams:
        return False
    directories = {kind: context.entry_discovery(kind) for kind in ("stream", "list")}
    return next(new_sources(transport, directories, logs.table), None) is not None
