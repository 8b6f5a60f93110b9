"""Warnings about names and patterns for which there is no queue."""

from __future__ import annotations

import logging
from contextlib import suppress

from toril.errors import RedisError
from toril.spark.pipeline.context import PipelineContext
from toril.spark.sources.server_choice import check_reachable
from toril.transport import BlockingTransport

_log = logging.getLogger("toril.pipeline")


def warn_about_unmatched_names(context: PipelineContext) -> None:
    """Logs each option that names no existing queue. The pipeline goes on: the queue may be created later."""
    prefixes = {"queues": context.options.prefix, "streams": context.options.stream_prefix}
    with context.connect() as transport:
        for option, names in _unmatched(context, transport).items():
            if names:
                _log.warning(
                    "%s: no queue matches %s under prefix %r at %s; check name, prefix and server",
                    option,
                    ", ".join(map(repr, names)),
                    prefixes[option],
                    transport.address.label,
                )


def _unmatched(context: PipelineContext, transport: BlockingTransport) -> dict[str, list[str]]:
    found = {"queues": context.queue_discovery().unmatched(transport)}
    if context.options.streams not in ("", "*"):
        lists, streams = (context.entry_discovery(kind).unmatched(transport) for kind in ("list", "stream"))
        found["streams"] = [name for name in lists if name in streams]
    return found


def warn_if_reachable(context: PipelineContext) -> None:
    """As above, if the server answers; otherwise ingest reports the error and retries."""
    with suppress(RedisError):
        check_reachable(context.redis)
        warn_about_unmatched_names(context)
