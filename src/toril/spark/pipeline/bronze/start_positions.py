"""Where ingest starts: the event streams as they are in Redis now, and their ends as the first positions."""

from __future__ import annotations

from toril.commands.streams import StreamState
from toril.lake import Lake
from toril.spark.pipeline.bronze.stream_positions import note_starts
from toril.spark.pipeline.context import PipelineContext
from toril.spark.sources.positions import end_of, read_stream_states
from toril.spark.sources.readers import stream_keys


def commit_starts(context: PipelineContext) -> None:
    """With `starting="latest"`, commits the present ends of new queues, so that later runs start there, too."""
    if context.options.starting == "latest":
        options = context.options
        lake = Lake(options.lake, options.storage_options)  # ingest runs on a thread of its own
        ends = {queue: end_of(state) for queue, state in stream_states(context).items()}
        note_starts(lake, ends)


def stream_states(context: PipelineContext) -> dict[str, StreamState]:
    """The event streams as they are in Redis now."""
    with context.connect() as transport:
        return read_stream_states(transport, stream_keys(context.queue_discovery().queues(transport)))
