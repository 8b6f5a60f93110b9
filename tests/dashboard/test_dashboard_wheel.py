"""The built wheel carries all that the dashboard needs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.dashboard.mounted_pages import PROXY_HOST, links_of, rewriting_proxy
from toril import Queue

REPOSITORY = Path(__file__).parents[2]
TOKEN = "a-long-token-for-programs"  # a public host name needs authentication


def fresh_environment(folder: Path) -> Path:
    """Makes a virtual environment with the wheel of this tree and without its source; returns its Python."""
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--skip-dependency-check",
        "--outdir",
        str(folder),
        str(REPOSITORY),
    ]
    subprocess.run(build, check=True, capture_output=True)
    home = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = home / "lib" / version / "site-packages"
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(packages)
    # Requirements come from the environment of the tests, so that nothing is downloaded; toril does not.
    (packages / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


@pytest.mark.timeout(180)
async def test_a_wheel_in_a_fresh_environment_serves_the_dashboard_behind_a_proxy(
    tmp_path: Path, valkey_url: str, prefix: str
) -> None:
    python = await asyncio.to_thread(fresh_environment, tmp_path)
    command = [
        "-m",
        "toril.cli",
        "dashboard",
        "--redis",
        valkey_url,
        "--prefix",
        prefix,
        "--port",
        "0",
        "--json",
        "--root-path",
        "/ops/queues",
        "--allowed-host",
        PROXY_HOST,
        "--token-env",
        "TORIL_TEST_TOKEN",
    ]
    async with Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        await queue.add("send", {})
    process = await asyncio.create_subprocess_exec(
        str(python),
        *command,
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TORIL_TEST_TOKEN": TOKEN},
    )
    try:
        assert process.stdout is not None
        url = json.loads(await process.stdout.readline())["url"]
        async with rewriting_proxy(url, "/ops/queues", authorization=f"Bearer {TOKEN}") as client:
            assert len(await links_of(client, "/ops/queues")) > 15
            for file in (
                "htmx-4.min.js",
                "hx-sse-4.min.js",
                "dashboard.js",
                "dashboard.css",
                "theme.js",
                "icon.svg",
            ):
                assert (await client.get(f"/ops/queues/static/{file}")).status_code == 200, file
    finally:
        process.terminate()
        await process.wait()
