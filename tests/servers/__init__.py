"""Real servers for tests, fault injection and benchmarks.

Guarantee: each listens on loopback only, on ports that were free, in a folder of its own, and ends with the process
that started it, even if that process is killed.
"""

from __future__ import annotations

from tests.servers.certificates import Certificates, make_certificates
from tests.servers.cluster import ValkeyCluster
from tests.servers.guard import LeftBehind, guarded
from tests.servers.postgres import Postgres
from tests.servers.process import Server, free_port, redis_binary, valkey_binary
from tests.servers.sentinel import ValkeySentinel

__all__ = [
    "Certificates",
    "LeftBehind",
    "Postgres",
    "Server",
    "ValkeyCluster",
    "ValkeySentinel",
    "free_port",
    "guarded",
    "make_certificates",
    "redis_binary",
    "valkey_binary",
]
