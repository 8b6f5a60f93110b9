"""Places where Spark runs beside local mode: a standalone cluster and a Spark Connect server, from the pip package."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from tests.servers import free_port

HOME = Path(pyspark.__file__).parent
ENVIRONMENT = {
    **os.environ,
    "SPARK_HOME": str(HOME),
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
}
# Short lives: compiling and checking code well costs more than it brings.
JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "768m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
Daemon = subprocess.Popen[bytes]
_STARTED_WITHIN = 120  # seconds; three JVMs on shared cores


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and two workers of one core each; the value is the address of the master."""
    port = free_port()
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
    worker = [
        "org.apache.spark.deploy.worker.Worker",
        "--host",
        "127.0.0.1",
        "--cores",
        "1",
        "--memory",
        "768m",
    ]
    log = folder / "daemons.log"
    with _daemons(log, folder, memory="256m") as start:
        start([*master, "--webui-port", "0"])
        _await_words(log, "I have been elected leader", 1)
        for _ in range(2):
            start([*worker, "--webui-port", "0", f"spark://127.0.0.1:{port}"])
        _await_words(log, "Successfully registered with master", 2)
        yield f"spark://127.0.0.1:{port}"


@contextmanager
def connect_server(folder: Path, master: str) -> Iterator[str]:
    """A Spark Connect server on any master; the value is its address."""
    port = free_port()
    settings = {
        **SETTINGS,
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
    }
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = [
        "org.apache.spark.deploy.SparkSubmit",
        "--master",
        master,
        *_as_words(settings),
        "--class",
        main,
    ]
    # Spark gives this server the memory of its daemons, whatever the settings say.
    with _daemons(folder / "connect.log", folder, memory="768m") as start:
        # Not a connection that succeeds: one to a free port of loopback may, by chance, be to itself.
        server = start([*submit, "spark-internal"])
        _await_words(folder / "connect.log", f"Connect server started at: 127.0.0.1:{port}", 1, server)
        yield f"sc://127.0.0.1:{port}"


def submit(master: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`spark-submit` of a program and its arguments."""
    command = [str(HOME / "bin" / "spark-submit"), "--master", master, *_as_words(SETTINGS), *words]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=500)


def _as_words(settings: dict[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]


@contextmanager
def _daemons(log: Path, folder: Path, memory: str) -> Iterator[Callable[[Sequence[str]], Daemon]]:
    """Starts Spark's classes, and kills them with all their children in the end."""
    started: list[Daemon] = []
    environment = {
        **ENVIRONMENT,
        "SPARK_WORKER_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": JAVA,
    }
    with log.open("wb") as output:

        def start(words: Sequence[str]) -> Daemon:
            command = [str(HOME / "bin" / "spark-class"), *words]
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            started.append(process)
            return process

        try:
            yield start
        finally:
            for process in reversed(started):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _await_words(log: Path, words: str, times: int, process: Daemon | None = None) -> None:
    deadline = time.monotonic() + _STARTED_WITHIN
    while len(re.findall(re.escape(words), log.read_text(errors="replace"))) < times:
        waiting = time.monotonic() < deadline and (process is None or process.poll() is None)
        assert waiting, log.read_text(errors="replace")[-4000:]
        time.sleep(0.05)
