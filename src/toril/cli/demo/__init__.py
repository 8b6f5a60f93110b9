"""`toril demo`: the main job of the product, end to end, on an embedded server."""

from __future__ import annotations

from toril.cli.demo.command import add_to

__all__ = ["add_to"]
