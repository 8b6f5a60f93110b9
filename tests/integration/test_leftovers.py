"""A test that leaves something behind, or proves nothing, fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

LEAVES_A_TASK = """
import asyncio

async def test_leaves_a_task():
    asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="forgotten task")
"""

LEAVES_A_THREAD = """
import threading

def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait, name="forgotten thread", daemon=True).start()
"""

LEAVES_A_KEY = """
def test_leaves_a_key(valkey):
    with valkey.client() as client:
        client.set("forgotten key", 1)
"""

LEAVES_A_CONNECTION = """
connections = []

def test_leaves_a_connection(valkey, prefix):
    client = valkey.client()
    connections.append(client)
    client.set(f"{prefix}:key", 1)
    client.client_setname("forgotten_connection")
"""

SKIPS = """
import pytest

def test_skips():
    pytest.skip("forgotten reason")
"""

LEAVES_NOTHING = """
import asyncio

async def test_leaves_nothing(valkey, prefix):
    with valkey.client() as client:
        client.set(f"{prefix}:key", 1)
    await asyncio.create_task(asyncio.sleep(0))
    await asyncio.to_thread(lambda: None)
"""


UNTIDY = {
    "task": LEAVES_A_TASK,
    "thread": LEAVES_A_THREAD,
    "key": LEAVES_A_KEY,
    "connection": LEAVES_A_CONNECTION,
    "reason": SKIPS,
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says when it runs the tidy and the untidy programs as tests, under our own conftest."""
    folder = tmp_path_factory.mktemp("programs")
    for name, program in {**UNTIDY, "nothing": LEAVES_NOTHING}.items():
        (folder / f"test_{name}.py").write_text(program)
    settings = [
        "-c",
        "pyproject.toml",
        "--rootdir",
        str(REPOSITORY),
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
    ]
    command = [sys.executable, "-m", "pytest", "-rA", *settings, str(folder)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout


@pytest.mark.parametrize("kind", UNTIDY)
def test_what_a_test_leaves_behind_or_undone_fails_it(outcome: str, kind: str) -> None:
    complaints = [line for line in outcome.splitlines() if line.startswith(("ERROR", "FAILED"))]
    assert any(f"_{kind}" in line for line in complaints), outcome
    assert f"forgotten {kind}" in outcome.replace("forgotten_", "forgotten ")


def test_a_tidy_test_passes(outcome: str) -> None:
    about_it = [line for line in outcome.splitlines() if line.endswith("test_leaves_nothing")]
    assert [line.split()[0] for line in about_it] == ["PASSED"], outcome
