"""A certificate authority for one test run, made by `openssl`, and a server certificate signed by it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

DAYS = "2"  # Longer than any test run; nobody will trust the authority by accident next week.


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files: what clients trust, and what the server shows."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """Create an authority and a certificate for `localhost` and 127.0.0.1 in `folder`."""
    made = Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    authority_key = folder / "authority.key"
    _openssl(
        "req",
        "-x509",
        "-nodes",
        *_new_key(authority_key),
        "-subj",
        "/CN=toril tests",
        "-addext",
        "keyUsage=critical,keyCertSign,cRLSign",  # Python 3.13 believes no authority without it.
        "-out",
        str(made.authority),
    )
    _openssl(
        "req", "-x509", "-nodes", *_new_key(made.key), "-subj", "/CN=localhost", "-out", str(made.certificate),
        "-CA", str(made.authority), "-CAkey", str(authority_key),
        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
    )  # fmt: skip
    return made


def _new_key(path: Path) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", DAYS, "-keyout", str(path))


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
