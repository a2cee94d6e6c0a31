"""`s3://` and `gs://` through obstore, the maintained Rust client. Settings come from the environment.

S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL (an `http://` one is allowed) and the other
usual variables; path style unless AWS_VIRTUAL_HOSTED_STYLE_REQUEST says otherwise. Google:
GOOGLE_APPLICATION_CREDENTIALS or the machine's service account. Retries and timeouts are bounded, so a dead store is
reported within seconds.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, cast

import obstore
from obstore import exceptions
from obstore.store import GCSStore, S3Store

from ate.errors import AteError, InvalidArgument, NotFound, Unavailable
from ate.objects.store import ObjectInfo, ObjectStore, Stopped, StopSign, in_thread

_CHUNK: Final = 8 << 20
_COPY_LIMIT: Final = 5 << 30
"""S3's limit for one server-side copy, bytes."""
_CLIENT: Final = {
    "connect_timeout": timedelta(seconds=3),
    # Of one read, or of one request until its answer begins: a part of _CHUNK must get through in it.
    "read_timeout": timedelta(seconds=10),
    # Of a whole request; only there to end at all. The client's own default of 30 s would cut long downloads.
    "timeout": timedelta(hours=1),
}
_RETRY: Final = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=8),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2},
}


class CloudStore(ObjectStore):
    """Objects of `bucket` below `prefix` (no slash at its ends, may be empty)."""

    def __init__(self, scheme: str, bucket: str, prefix: str, environment: dict[str, str]) -> None:
        self._base = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
        self._store = _open(scheme, bucket, prefix, environment, self._base)

    def uri(self, key: str) -> str:
        return f"{self._base}/{key}"

    async def put(self, key: str, chunks: Iterable[bytes]) -> None:
        def work(sign: StopSign) -> None:
            failure: list[BaseException] = []
            parts = _parts(sign.guard(chunks), failure)
            try:
                first = next(parts, b"")
                if len(first) < _CHUNK:  # one request instead of the three of a multipart upload
                    obstore.put(self._store, key, first, use_multipart=False)
                else:
                    whole = itertools.chain([first], parts)
                    obstore.put(self._store, key, whole, use_multipart=True, chunk_size=_CHUNK, max_concurrency=4)
            except BaseException as error:
                # What the source of the chunks raised reaches us wrapped in the client's words.
                raise failure[0] if failure else self._explain(error, key) from error

        await in_thread(work)

    async def get(self, key: str, sink: Callable[[bytes], object]) -> None:
        def work(sign: StopSign) -> None:
            try:
                stream = iter(obstore.get(self._store, key).stream(min_chunk_size=1 << 20))
            except Exception as error:
                raise self._explain(error, key) from error
            while True:
                sign.check()
                try:
                    chunk = next(stream, None)
                except Exception as error:
                    raise self._explain(error, key) from error
                if chunk is None:
                    return
                sink(bytes(chunk))

        await in_thread(work)

    async def list(self, *, partial: bool = False) -> list[ObjectInfo]:
        def work(sign: StopSign) -> list[ObjectInfo]:
            found = []
            try:
                for page in obstore.list(self._store):
                    sign.check()
                    found += [ObjectInfo(entry["path"], entry["size"]) for entry in page]
            except Exception as error:
                raise self._explain(error, "") from error
            return sorted(found, key=lambda info: info.key)

        return await in_thread(work)

    async def delete(self, keys: Sequence[str]) -> None:
        def work(sign: StopSign) -> None:
            for start in range(0, len(keys), 1000):
                sign.check()
                try:
                    obstore.delete(self._store, list(keys[start : start + 1000]))
                except FileNotFoundError:
                    pass
                except Exception as error:
                    raise self._explain(error, keys[start]) from error

        if keys:
            await in_thread(work)

    async def copy(self, source: str, target: str) -> None:
        def work(sign: StopSign) -> bool:
            try:
                if obstore.head(self._store, source)["size"] >= _COPY_LIMIT:
                    return False
                obstore.copy(self._store, source, target)
            except Exception as error:
                raise self._explain(error, source) from error
            return True

        if not await in_thread(work):
            with tempfile.TemporaryFile() as file:
                await self.get(source, file.write)
                file.seek(0)
                await self.put(target, iter(lambda: file.read(1 << 20), b""))

    def _explain(self, error: BaseException, key: str) -> BaseException:
        if isinstance(error, AteError | Stopped) or not isinstance(error, Exception):
            return error
        uri = self.uri(key) if key else self._base
        text = " ".join(str(error).split("\n\nDebug source:")[0].split())[:600]
        # A missing bucket and wrong credentials are faults of the set-up, which end: whoever waits for a store that is
        # down waits for these as well, and nothing is given up for them.
        if "NoSuchBucket" in text:
            return Unavailable(f"{uri} cannot be reached: there is no such bucket. Create it")
        if isinstance(error, FileNotFoundError):
            return NotFound(f"{uri} does not exist")
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            return Unavailable(f"the object store refused access to {uri}: check its credentials. {text}")
        if isinstance(error, exceptions.InvalidPathError):
            return InvalidArgument(f"{uri} is no usable object name: {text}")
        return Unavailable(f"the object store of {uri} does not answer or failed: {text}")


def _open(scheme: str, bucket: str, prefix: str, environment: dict[str, str], base: str) -> Any:
    client: dict[str, Any] = dict(_CLIENT)
    options: dict[str, Any] = {"prefix": prefix or None, "client_options": client, "retry_config": _RETRY}
    try:
        if scheme == "gs":
            endpoint = environment.get("STORAGE_EMULATOR_HOST", "")
            if endpoint:
                # As Google's own libraries: an emulator is asked without credentials.
                client["allow_http"] = True
                url = endpoint if "://" in endpoint else f"http://{endpoint}"
                options["config"] = {"base_url": url, "skip_signature": True}
            return GCSStore(bucket, **options)
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL", "")
        client["allow_http"] = endpoint.startswith("http://")
        if endpoint:
            options["endpoint"] = endpoint
        virtual = environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true"
        return S3Store(bucket, virtual_hosted_style_request=virtual, **options)
    except (exceptions.BaseError, ValueError) as error:
        raise InvalidArgument(f"{base}: the object store's settings are not usable: {error}") from error


def _parts(chunks: Iterable[bytes], failure: list[BaseException]) -> Iterator[bytes]:
    """The same bytes in pieces of _CHUNK; what the source raises is also kept in `failure`."""
    buffer = bytearray()
    try:
        for chunk in chunks:
            buffer += chunk
            while len(buffer) >= _CHUNK:
                yield bytes(buffer[:_CHUNK])
                del buffer[:_CHUNK]
    except BaseException as error:
        failure.append(error)
        raise
    if buffer:
        yield bytes(buffer)


def open_cloud(scheme: str, bucket: str, prefix: str, environment: dict[str, str]) -> ObjectStore:
    return cast(ObjectStore, CloudStore(scheme, bucket, prefix, environment))
