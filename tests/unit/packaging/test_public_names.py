"""What `import toril` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import toril

PUBLIC_NAMES = set(
    """
App Backoff Batch ConnectionPolicy Context Deduplication Depends Envelope ErrorCategory Event FlowNode FlowProducer
InvalidOption Job JobCounts JobFailed JobOptions JobState KeepJobs ListQueue ListWorker ManualWorker NewJob ParentRef
PermanentError Queue QueueEvents RateLimit StreamQueue StreamWorker TorilError TransientError Worker WorkerOptions
__version__ categorize_error sync
""".split()
)

HEAVY = {
    "redis",
    "hiredis",
    "pyspark",
    "pyarrow",
    "pandas",
    "numpy",
    "starlette",
    "uvicorn",
    "typer",
    "rich",
    "asyncio",
}


def test_the_public_names_are_these_and_no_others() -> None:
    assert set(toril.__all__) == PUBLIC_NAMES
    assert dir(toril) == toril.__all__ == sorted(PUBLIC_NAMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Kueue'"):
        _ = toril.Kueue


def test_importing_toril_loads_no_package_and_nothing_heavy() -> None:
    loaded = _modules_loaded_by("import toril")
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("toril.")} == set()


def test_a_name_is_imported_from_its_package_when_first_used() -> None:
    loaded = _modules_loaded_by("import toril; toril.TorilError")
    assert "toril.errors" in loaded
    assert not loaded & {"redis", "pyspark", "starlette"}


def _modules_loaded_by(program: str) -> set[str]:
    listing = f"{program}\nimport sys; print('\\n'.join(sys.modules))"
    return set(
        subprocess.run(
            [sys.executable, "-c", listing], check=True, capture_output=True, text=True
        ).stdout.split()
    )
