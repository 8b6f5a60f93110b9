"""What Spark listens on: with a local master, nothing that another machine can reach."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys

import pytest

# A session of its own: a test's session may have been made with other settings. The addresses of every process of the
# session are printed, once a task has started Python workers.
PROGRAM = """
import json, sys
import psutil
from toril.spark.pipeline.session import build_session

spark = build_session(sys.argv[1], memory="512m")
assert spark.sparkContext.parallelize(range(4), 2).map(lambda one: one * 2).sum() == 12
me = psutil.Process()
addresses = [
    one.laddr.ip
    for process in [me, *me.children(recursive=True)]
    for one in process.net_connections("inet")
    if one.status == psutil.CONN_LISTEN
]
conf = spark.sparkContext.getConf()
secret = conf.get("spark.authenticate.secret", "")
lines = []
for process in [me, *me.children(recursive=True)]:
    try:
        lines.append(" ".join(process.cmdline()))
    except psutil.Error:
        continue  # it has ended
print(json.dumps({
    "addresses": addresses,
    "authenticate": conf.get("spark.authenticate", "false"),
    "shown": bool(secret) and any(secret in line for line in lines),
    "has_secret": bool(secret),
}))
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,1,1024]"])
def test_a_local_master_listens_on_loopback_only_and_authenticates(master: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, master], capture_output=True, text=True, timeout=170
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["authenticate"] == "true"
    # Spark makes the secret of `local[…]` itself; that of `local-cluster` is on no command line.
    assert found["has_secret"] == master.startswith("local-cluster") and not found["shown"]
    assert len(found["addresses"]) >= 2
    assert [one for one in found["addresses"] if not _is_loopback(one)] == []


def _is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
