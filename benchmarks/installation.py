"""Installs rivals on demand, each apart from all others, and remembers it.

Guarantee: a rival whose pinned versions are unchanged is not touched again; one that cannot be installed names itself
and the reason, and the others go on.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.contenders import ADAPTERS, Contender

STAMP = "pinned.sha256"
LAST_WORDS = 1500  # characters of an installer's complaint


class NotInstalled(Exception):
    """A rival could not be installed; the message ends with the installer's own words."""


def install(contender: Contender) -> None:
    """Makes sure that the contender can be started."""
    if contender.environment is not None:
        install_pinned(contender.label, contender.environment, _pins(contender), python=contender.python)


def install_pinned(label: str, home: Path, pins: list[Path], *, python: bool) -> None:
    """Installs what `pins` say into `home`, unless it is there already."""
    wanted = hashlib.sha256(b"".join(pin.read_bytes() for pin in pins)).hexdigest()
    stamp = home / STAMP
    if stamp.exists() and stamp.read_text(encoding="ascii") == wanted:
        return
    print(f"installing {label}", file=sys.stderr)
    if python:
        _install_python(home, pins[0])
    else:
        _install_node(home, pins)
    stamp.write_text(wanted, encoding="ascii")


def _pins(contender: Contender) -> list[Path]:
    folder = ADAPTERS / contender.folder
    if contender.python:
        return [folder / "requirements.txt"]
    return [folder / name for name in ("package.json", "package-lock.json", ".npmrc")]


def _install_python(home: Path, requirements: Path) -> None:
    _run(sys.executable, "-m", "venv", "--clear", str(home))
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(*pip, "--no-deps", "--requirement", str(requirements))


def _install_node(home: Path, pins: list[Path]) -> None:
    home.mkdir(parents=True, exist_ok=True)
    for pin in pins:
        shutil.copy(pin, home / pin.name)
    # No package needs its install script: the native msgpack decoder comes as a prebuilt package.
    _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", folder=home)


def _run(*command: str, folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout)[-LAST_WORDS:]
        raise NotInstalled(f"{' '.join(command[:4])}: {words}")
