"""From a URI to the store that keeps it: `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix`."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

from ate.errors import InvalidArgument
from ate.objects.cloud import open_cloud
from ate.objects.file import FileStore
from ate.objects.store import ObjectStore

SCHEMES = ("file", "s3", "gs")
_SETTINGS = ("AWS_", "GOOGLE_", "STORAGE_EMULATOR_HOST")


@dataclass(frozen=True)
class Location:
    """A prefix: `store` holds exactly what lies below `uri`, keyed by what follows the slash after it."""

    uri: str
    store: ObjectStore


def split(uri: str) -> tuple[str, str, str]:
    """(scheme, bucket, path without slashes at its ends) of a URI; InvalidArgument when it is none of ours.

    Names are taken as they are written: nothing is percent-decoded.
    """
    scheme, found, rest = uri.partition("://")
    if not found or scheme not in SCHEMES:
        raise InvalidArgument(f"{uri!r} is no object location: it begins with file://, s3:// or gs://")
    bucket, _, path = rest.partition("/")
    path = path.strip("/")
    if any(part in ("", ".", "..") or "\0" in part for part in path.split("/") if path):
        raise InvalidArgument(f"{uri!r} is no object location: its path has an empty, '.' or '..' part")
    if scheme == "file" and (bucket not in ("", "localhost") or not path):
        raise InvalidArgument(f"{uri!r} is no folder's location: write file:///absolute/path")
    if scheme != "file" and not bucket:
        raise InvalidArgument(f"{uri!r} names no bucket")
    return scheme, bucket, path


def open_location(uri: str) -> Location:
    """The location at `uri`. Nothing is asked of the store yet; clients are kept for reuse."""
    scheme, bucket, path = split(uri)
    if scheme == "file":
        return Location(f"file:///{path}", FileStore(Path("/") / path))
    return Location(f"{scheme}://{bucket}" + (f"/{path}" if path else ""), open_whole(scheme, bucket, path))


def open_whole(scheme: str, bucket: str, path: str = "") -> ObjectStore:
    """The whole of a store: a bucket, or all files of this machine. Locations in it can be copied by it."""
    if scheme == "file":
        return FileStore(Path("/") / path)
    environment = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}
    return _cloud(scheme, bucket, path, tuple(sorted(environment.items())))


@functools.lru_cache(maxsize=64)
def _cloud(scheme: str, bucket: str, path: str, environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    return open_cloud(scheme, bucket, path, dict(environment))
