"""For the tests of applications: jobs without a server, assertions, a clock, and fixtures for pytest.

Guarantee: importing it imports none of its modules, because pytest does it in every run (`toril.testing.plugin`). Each
name is imported when it is first used; the fixtures start an embedded server when the first test asks for one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toril.testing.assertions import assert_enqueued, assert_not_enqueued
    from toril.testing.clock import TestClock
    from toril.testing.drain import drain
    from toril.testing.jobs import make_blocking_job, make_context, make_job

__all__ = [
    "TestClock",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "make_blocking_job",
    "make_context",
    "make_job",
]

_MODULE_OF = {
    "TestClock": "clock",
    "assert_enqueued": "assertions",
    "assert_not_enqueued": "assertions",
    "drain": "drain",
    "make_blocking_job": "jobs",
    "make_context": "jobs",
    "make_job": "jobs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'toril.testing' has no attribute {name!r}")
    value = getattr(import_module(f"toril.testing.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # also replaces a module of the same name, which the import has set
    return value
