"""`toril demo`: adds and processes jobs on an embedded server."""

from __future__ import annotations

from toril.cli.demo.command import add_to

__all__ = ["add_to"]
