"""Installs rivals on demand, each into its own folder.

Guarantee: a rival whose pinned versions are unchanged is not installed again. If one cannot be installed, the error
names it and the reason, and the run continues with the others.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.contenders import ADAPTERS, Contender

STAMP = "pinned.sha256"
ERROR_CHARACTERS = 1500  # of the installer's output, in the message of an error


class NotInstalled(Exception):
    """A rival could not be installed; the message ends with the installer's output."""


def install(contender: Contender) -> None:
    """Installs the contender if it is not installed."""
    if contender.install_folder is not None:
        install_pinned(contender.label, contender.install_folder, _pins(contender), python=contender.python)


def install_pinned(label: str, home: Path, pins: list[Path], *, python: bool) -> None:
    """Installs the packages of `pins` into `home`, unless they are installed already."""
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
        output = (done.stderr or done.stdout)[-ERROR_CHARACTERS:]
        raise NotInstalled(f"{' '.join(command[:4])}: {output}")
