"""The states and their signs: a state is never shown by its colour alone."""

from __future__ import annotations

from typing import Final

# The sign before the name of a state.
STATE_SIGNS: Final = {
    "waiting": "○",
    "prioritized": "◆",
    "active": "▶",
    "delayed": "◷",
    "waiting-children": "◇",
    "paused": "❚❚",
    "completed": "✓",
    "failed": "✕",
    "retried": "↻",
    "stalled": "!",
    "unknown": "?",
    "running": "▶",
    "done": "✓",
    "cancelled": "⊘",
    "interrupted": "!",
    "ok": "✓",
    "note": "i",
    "warning": "!",
    "problem": "✕",
}
STATES: Final = (
    "waiting", "prioritized", "active", "delayed", "waiting-children", "completed", "failed",
)  # fmt: skip
ENVELOPE_STATES: Final = ("waiting", "delayed", "failed")
