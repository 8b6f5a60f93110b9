"""A test that leaves something running fails, whatever it asserted."""

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
    client.client_setname("forgotten-connection")
"""

LEAVES_NOTHING = """
import asyncio

async def test_leaves_nothing(valkey, prefix):
    with valkey.client() as client:
        client.set(f"{prefix}:key", 1)
    await asyncio.create_task(asyncio.sleep(0))
    await asyncio.to_thread(lambda: None)
"""


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (LEAVES_A_TASK, "forgotten task"),
        (LEAVES_A_THREAD, "forgotten thread"),
        (LEAVES_A_KEY, "forgotten key"),
        (LEAVES_A_CONNECTION, "forgotten-connection"),
    ],
)
def test_what_a_test_leaves_behind_fails_it(tmp_path: Path, program: str, named: str):
    result = _run_as_test(tmp_path, program)
    assert result.returncode == 1, result.stdout
    assert named in result.stdout


def test_a_tidy_test_passes(tmp_path: Path):
    result = _run_as_test(tmp_path, LEAVES_NOTHING)
    assert result.returncode == 0, result.stdout


def _run_as_test(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    file = folder / "test_program.py"
    file.write_text(program)
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
    command = [sys.executable, "-m", "pytest", *settings, str(file)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=50)
