"""Fixtures every test may ask for: real servers, a namespace of its own, and a search for what a test leaves behind.

`valkey`, `redis7`, `cluster` and `sentinel` run once per test run and are shared; a test that freezes, kills or
configures a server asks `start_valkey` for one of its own. `server_url` runs a test on Valkey and on Redis 7.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.servers import (
    Certificates,
    Server,
    ValkeyCluster,
    ValkeySentinel,
    free_port,
    guarded,
    make_certificates,
)
from tests.watchdog import (  # noqa: F401  # pytest finds its hooks by their names
    pytest_collection,
    pytest_configure,
    pytest_exception_interact,
    pytest_runtest_protocol,
    pytest_sessionfinish,
    pytest_timeout_set_timer,
)
from toril.transport import default_server

# A busy machine is no fault of an example.
settings.register_profile("toril", deadline=None)
settings.load_profile("toril")

# Who runs in the background of a shell ignores Ctrl-C, and so would all programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ENDED_WITHIN = 3.0  # Seconds a thread may take to end after the test that asked it to.
# Threads that live as long as the process, by the libraries that keep them.
LASTING_THREADS = ("pydevd", "pyarrow", "ThreadPoolExecutor-spark", "Thread-py4j")


@pytest.fixture
def prefix() -> str:
    """The first part of every key this test may write."""
    return f"test{uuid.uuid4().hex[:12]}"


# --- shared servers -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared_valkey() -> Iterator[Server]:
    with Server.valkey() as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def shared_redis7() -> Iterator[Server]:
    with Server.redis7() as server:
        yield server


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_sentinel() -> Iterator[ValkeySentinel]:
    with ValkeySentinel() as sentinel:
        yield sentinel


def _guard(
    request: pytest.FixtureRequest, servers: list[Server], prefix: str
) -> AbstractContextManager[None]:
    return guarded(servers, prefix, any_key=request.node.get_closest_marker("any_key") is not None)


@pytest.fixture
def valkey(request: pytest.FixtureRequest, shared_valkey: Server, prefix: str) -> Iterator[Server]:
    """A Valkey 9 without keys; leftovers of this test fail it."""
    with _guard(request, [shared_valkey], prefix):
        yield shared_valkey


@pytest.fixture
def redis7(request: pytest.FixtureRequest, shared_redis7: Server, prefix: str) -> Iterator[Server]:
    """Debian's Redis 7 without keys; leftovers of this test fail it."""
    with _guard(request, [shared_redis7], prefix):
        yield shared_redis7


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, shared_cluster: ValkeyCluster, prefix: str
) -> Iterator[ValkeyCluster]:
    """Three Valkeys as a cluster; leftovers of this test fail it."""
    with _guard(request, shared_cluster.nodes, prefix):
        yield shared_cluster


@pytest.fixture
def sentinel(
    request: pytest.FixtureRequest, shared_sentinel: ValkeySentinel, prefix: str
) -> Iterator[ValkeySentinel]:
    """A primary and a replica under a Sentinel; leftovers of this test fail it."""
    with _guard(request, shared_sentinel.nodes, prefix):
        yield shared_sentinel


@pytest.fixture
def valkey_url(valkey: Server) -> str:
    return valkey.url


@pytest.fixture
def redis7_url(redis7: Server) -> str:
    return redis7.url


@pytest.fixture
def cluster_url(cluster: ValkeyCluster) -> str:
    return cluster.url


@pytest.fixture
def sentinel_url(sentinel: ValkeySentinel) -> str:
    return sentinel.url


@pytest.fixture(params=["valkey", "redis7"])
def server(request: pytest.FixtureRequest) -> Server:
    """The test runs twice: on Valkey 9 and on Redis 7."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def server_url(server: Server) -> str:
    return server.url


# --- servers for one test -------------------------------------------------------------------------------------------


@pytest.fixture
def start_valkey() -> Iterator[Callable[..., Server]]:
    """Starts a Valkey for this test alone: `start_valkey(appendonly="yes", maxmemory="20mb")`."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Server.valkey(**settings))


@pytest.fixture
def start_redis7() -> Iterator[Callable[..., Server]]:
    """Starts a Redis 7 for this test alone."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Server.redis7(**settings))


@pytest.fixture
def redis7_tls(certificates: Certificates, start_redis7: Callable[..., Server]) -> TlsServer:
    """A Redis 7 that also speaks TLS: `url` is `rediss://…`, `trusted_url` names its authority too."""
    return TlsServer(certificates, start_redis7)


class TlsServer:
    """One Redis 7 with two ports, plain and TLS."""

    def __init__(self, certificates: Certificates, start_redis7: Callable[..., Server]) -> None:
        self.authority: Path = certificates.authority
        self.port = free_port()
        self.plain = start_redis7(
            tls_port=str(self.port),
            tls_cert_file=str(certificates.certificate),
            tls_key_file=str(certificates.key),
            tls_ca_cert_file=str(certificates.authority),
            tls_auth_clients="no",
        )

    @property
    def url(self) -> str:
        """Without the authority: a client that verifies certificates refuses the server."""
        return f"rediss://localhost:{self.port}"

    @property
    def trusted_url(self) -> str:
        return f"{self.url}?ssl_ca_certs={self.authority}"


# --- several processes at once --------------------------------------------------------------------------------------

# Folders whose tests share something that is slow to start (a JVM, a browser): each stays in one process.
TOGETHER = ("tests/spark", "tests/browser")
# These start what they need in processes of their own, and share nothing with their neighbours.
APART = ("tests/spark/test_killed_drivers.py", "tests/spark/test_masters.py")
# What takes longest starts first, so that no process is left alone with it at the end.
LONGEST_FIRST = ("tests/spark", "tests/interop", "tests/faults", "tests/conformance", "tests/browser")


class ByFile(LoadScopeScheduling):
    """Tests of one file run in one process, and so do those of a folder that belongs together."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path in APART:
            return path
        return next((folder for folder in TOGETHER if path.startswith(folder)), path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """The order stays random within each turn."""
    yield
    items.sort(key=lambda item: _turn(item.nodeid))


def _turn(path: str) -> int:
    return next(
        (turn for turn, folder in enumerate(LONGEST_FIRST) if path.startswith(folder)), len(LONGEST_FIRST)
    )


# --- what a test may not leave behind -------------------------------------------------------------------------------

# Where the embedded server of somebody who works on toril keeps its data; tests leave it alone.
DATA_OF_THE_REPOSITORY = Path(__file__).parents[1] / ".toril"
WAS_THERE = DATA_OF_THE_REPOSITORY.exists()


@pytest.fixture(autouse=True)
def _own_default_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test chooses its default server as a process of its own would, and never in the repository."""
    monkeypatch.setattr(default_server, "_default", default_server._Default())
    monkeypatch.delenv(default_server.VARIABLE, raising=False)
    yield
    assert WAS_THERE or not DATA_OF_THE_REPOSITORY.exists(), "a test started a server in the repository"


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    """Fails a test whose threads outlive it and its event loop."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + ENDED_WITHIN
    while (left := _new_threads(before)) and time.monotonic() < deadline:
        left[0].join(timeout=0.05)
    assert not left, f"threads outlive the test: {[thread.name for thread in left]}"


def _new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t not in before and not t.name.startswith(LASTING_THREADS)]


@pytest.fixture(autouse=True)
def _tasks_end(request: pytest.FixtureRequest, _threads_end: None) -> None:
    """Fails a test whose asyncio tasks outlive it. A test without a loop does not get one for this."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("_tasks_of_the_loop_end")


@pytest.fixture
async def _tasks_of_the_loop_end() -> AsyncIterator[None]:
    # Set up before and torn down after every other fixture of the test: what they close is closed by now.
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"asyncio tasks outlive the test: {sorted(map(repr, left))}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that skips itself proves nothing, so it fails."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"tests do not skip: set-up provides what they need ({report.longrepr})"
    return report
