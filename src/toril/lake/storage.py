"""Where a lake lies: a folder of this machine, or a URL that pyarrow and deltalake both understand.

Guarantee: a folder is always absolute, so that executors with another working directory find the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toril.errors import InvalidOption


def normalise(place: str | Path) -> str:
    """An absolute path for local folders (with or without `file://`), the URL itself otherwise."""
    text = str(place)
    if not text.strip():
        raise InvalidOption("lake", "is empty", "give a folder or a URL such as s3://bucket/lake")
    scheme = urlsplit(text).scheme
    if scheme == "file":
        return str(Path(urlsplit(text).path).resolve())
    if len(scheme) > 1:
        # Hadoop's scheme is s3a, all others use s3.
        return text.rstrip("/").replace("s3a://", "s3://", 1)
    return str(Path(text).expanduser().resolve())


def is_local(url: str) -> bool:
    return "://" not in url


def create_private(place: str) -> None:
    """Creates a local folder that only its owner can enter; one that exists, and a URL, stay as they are."""
    if is_local(place):
        Path(place).mkdir(mode=0o700, parents=True, exist_ok=True)


def for_spark(folder: str) -> str:
    """A local folder as an address of Spark's file systems."""
    return f"file://{folder}"


def file_system(url: str, storage: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """pyarrow's file system for `url`, and the path inside it."""
    from pyarrow import fs

    if is_local(url):
        return fs.LocalFileSystem(), url
    if url.startswith("s3://") and storage:
        return _s3(storage), url.removeprefix("s3://")
    system, path = fs.FileSystem.from_uri(url)
    return system, path


def _s3(storage: Mapping[str, str]) -> object:
    from pyarrow import fs

    known = {key.lower(): value for key, value in storage.items()}
    return fs.S3FileSystem(
        access_key=known.get("aws_access_key_id"),
        secret_key=known.get("aws_secret_access_key"),
        session_token=known.get("aws_session_token"),
        region=known.get("aws_region"),
        endpoint_override=known.get("aws_endpoint_url"),
    )
