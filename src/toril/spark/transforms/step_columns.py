"""The input and output columns of `job_timeline`, and the event names in them.

Guarantee: a step is an event of a job, the state that the last batch left it in, or a hash that was read of it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

STATE: Final = "toril.state"  # the pseudo-event that carries a job over from the last batch
HASH: Final = (
    "toril.hash"  # a job that had ended when its queue was read after a gap: the events may not say so
)
FILL: Final = "toril.fill"  # a hash that completes attempts; it is no step of a timeline by itself
ENDS: Final = ("completed", "failed", "waiting", "delayed", "waiting-children", "stalled")
TIMELINE_EVENTS: Final = ("added", "active", "removed", *ENDS)
DONE: Final = ("completed", "failed", "removed")
# How pickups ended, besides those that stalled. A hash says how many there were; which ones, only events say.
TALLIES: Final = ("returns", "delays", "failures", "completions", "suspensions")
_COUNTS: Final = ("attempt", "stalls", *TALLIES)

_TEXT, _COUNT, _TIME = pa.string(), pa.int64(), pa.timestamp("us", tz="UTC")

STEP: Final = pa.schema(
    [
        ("queue", _TEXT),
        ("job_id", _TEXT),
        ("ts", _TIME),
        ("seq", _COUNT),
        ("event", _TEXT),
        ("prev", _TEXT),
        ("step_name", _TEXT),
        ("failed_reason", _TEXT),
        ("was_state", _TEXT),
        *((f"was_{name}", _COUNT) for name in _COUNTS),
        *((f"was_{name}_at", _TIME) for name in ("added", "ready", "active", "finished")),
        ("since_ts", _TIME),  # the first event that a hash was read for
        ("since_seq", _COUNT),
        ("hash", _TEXT),
    ]
)

POINT: Final = pa.schema(
    [
        *((name, STEP.field(name).type) for name in ("queue", "job_id", "ts", "seq", "event", "was_state")),
        ("was_finished_at", _TIME),
        ("failed_reason", _TEXT),
        ("name", _TEXT),
        *((name, _COUNT) for name in _COUNTS),
        *((f"{name}_at", _TIME) for name in ("added", "ready", "active")),
        ("before_event", _TEXT),
        ("late_end", pa.bool_()),
        ("next_event", _TEXT),
        # Of a pickup that ended: the end, what came after it, and how many ends there were by then.
        ("end_event", _TEXT),
        ("end_ts", _TIME),
        ("end_reason", _TEXT),
        ("end_after", _TEXT),
        *((f"end_{name}", _COUNT) for name in TALLIES),
        # The hash that tells more about it, and how the job stood by the events when it was read.
        ("hash", _TEXT),
        ("known_ts", _TIME),
        ("known_event", _TEXT),
        ("known_attempt", _COUNT),
        *((f"known_{name}", _COUNT) for name in TALLIES),
    ]
)
