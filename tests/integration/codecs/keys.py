"""Keys for tests."""

from __future__ import annotations

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
