"""One file from a URL (file, s3, gs, https, http) to a path, bounded in size: how runtime binaries reach a node."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ate.errors import AteError, InvalidArgument, NotFound, PermissionDenied, ResourceExhausted, Unavailable
from ate.objects.file import explain
from ate.objects.location import open_location, split
from ate.objects.store import StopSign, in_thread

_CHUNK = 1 << 20
_TIMEOUT = 10.0


async def download(url: str, path: Path, *, max_bytes: int) -> None:
    """Writes what `url` names to `path`, a new file; nothing is left there after a failure or a cancellation.

    ResourceExhausted when it has more than `max_bytes`. The caller checks the digest: plain http is as good then.
    """
    written = 0
    try:
        with path.open("xb") as file:

            def sink(chunk: bytes) -> None:
                nonlocal written
                written += len(chunk)
                if written > max_bytes:
                    raise ResourceExhausted(f"{url} has more than {max_bytes} bytes, the limit for one file")
                try:
                    file.write(chunk)
                except OSError as error:
                    raise explain(error, path) from error

            if url.startswith(("https://", "http://")):
                await in_thread(lambda sign: _over_http(url, sink, sign))
            else:
                scheme, bucket, key = split(url)
                folder, _, name = key.rpartition("/")
                if not name:
                    raise InvalidArgument(f"{url} names no object")
                if scheme == "file" and not folder:
                    raise InvalidArgument(f"{url}: put the file into a folder")
                store = open_location(f"{scheme}://{bucket}/{folder}").store
                await store.get(name, sink)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise explain(error, path) from error
        raise


def _over_http(url: str, sink: Callable[[bytes], object], sign: StopSign) -> None:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
            expected = response.length
            received = 0
            while chunk := response.read(_CHUNK):
                sign.check()
                received += len(chunk)
                sink(chunk)
    except urllib.error.HTTPError as error:
        raise _of_status(url, error.code) from error
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{url} cannot be fetched: {error}") from error
    if expected is not None and received != expected:
        raise Unavailable(f"{url} broke off after {received} of {expected} bytes: try again")


def _of_status(url: str, status: int) -> AteError:
    if status in (404, 410):
        return NotFound(f"{url} does not exist (HTTP {status})")
    if status in (401, 403):
        return PermissionDenied(f"{url} may not be read (HTTP {status})")
    return Unavailable(f"{url} answered HTTP {status}")
