"""What `import toril` offers, and what it costs."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import toril

PUBLIC_NAMES = set(
    """
App Backoff Batch ConnectionPolicy Context Deduplication Depends Envelope ErrorCategory Event FlowNode FlowProducer
GroupLimits InvalidOption Job JobCounts JobFailed JobOptions JobState KeepJobs ListQueue ListWorker ManualWorker NewJob
ParentRef PermanentError Queue QueueEvents RateLimit ResultsTo StreamQueue StreamWorker TorilError TransientError Worker
WorkerOptions __version__ categorize_error sync
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
    assert {name for name in loaded if name.startswith("toril.")} == {"toril.lazy_names"}


def test_a_name_is_imported_from_its_package_when_first_used() -> None:
    loaded = _modules_loaded_by("import toril; toril.TorilError")
    assert "toril.errors" in loaded
    assert not loaded & {"redis", "pyspark", "starlette"}


# Nothing listens on port 1: what an add needs is imported, and the attempt fails.
ONE_ADD = """
import asyncio, contextlib
from toril import Queue, TorilError

async def main():
    with contextlib.suppress(TimeoutError, TorilError):
        async with asyncio.timeout(1), Queue("imports", redis="redis://127.0.0.1:1") as queue:
            await queue.add("job", {})

asyncio.run(main())
"""


def test_a_process_that_adds_a_job_imports_only_what_it_uses() -> None:
    loaded = _modules_loaded_by(ONE_ADD)
    assert "toril.producer.queue" in loaded
    assert not loaded & {"redis", "opentelemetry", "psutil", "toril.worker", "toril.producer.flow"}


def test_every_name_of_a_package_that_imports_lazily_is_there() -> None:
    for package in ("toril.producer", "toril.jobs", "toril.transport", "toril.codecs"):
        module = importlib.import_module(package)
        assert all(hasattr(module, name) for name in module.__all__)
        with pytest.raises(AttributeError, match=f"{package}.*no attribute 'Kueue'"):
            _ = module.Kueue


def _modules_loaded_by(program: str) -> set[str]:
    listing = f"{program}\nimport sys; print('\\n'.join(sys.modules))"
    return set(
        subprocess.run(
            [sys.executable, "-c", listing], check=True, capture_output=True, text=True
        ).stdout.split()
    )
