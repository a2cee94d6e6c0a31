"""A client of OCI registries (distribution spec 1.1): documents and blobs by digest, over aiohttp in the asyncio room.

Credentials come from Docker's config.json ($DOCKER_CONFIG or ~/.docker), tokens by the Bearer flow registries ask for.
Every failure is an error of ours that names the registry and the image; a registry that is down is reported in seconds.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from ate.errors import DataLoss, NotFound, PermissionDenied, Unavailable
from ate.node.images.document import INDEX_TYPES, MANIFEST_TYPES, MAX_DOCUMENT, Descriptor
from ate.node.images.reference import Reference, is_loopback

_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=5, sock_connect=5, sock_read=20)
_ATTEMPTS: Final = 3
_CHUNK: Final = 256 << 10
_ACCEPT: Final = ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')


class _Retry(Exception):
    """Worth another attempt."""


class Registry:
    """One image's registry, for the time of one pull. Its coroutines run in the asyncio room."""

    def __init__(self, reference: Reference, plain_http: tuple[str, ...]) -> None:
        self._reference = reference
        plain = is_loopback(reference.registry) or reference.registry in plain_http
        self._base = f"{'http' if plain else 'https'}://{reference.registry}"
        self._authorization = ""

    async def document(self, digest: str) -> bytes:
        """A manifest or index, its digest checked."""
        data = bytearray()
        await self._fetch("manifests", digest, data, MAX_DOCUMENT, _ACCEPT)
        return bytes(data)

    async def small_blob(self, blob: Descriptor) -> bytes:
        """A config."""
        data = bytearray()
        await self._fetch("blobs", blob.digest, data, MAX_DOCUMENT, "*/*")
        return bytes(data)

    async def blob(self, blob: Descriptor, path: Path) -> None:
        """A layer into the file `path`, its size and digest checked."""
        await self._fetch("blobs", blob.digest, path, blob.size, "*/*")

    async def _fetch(self, kind: str, digest: str, target: bytearray | Path, limit: int, accept: str) -> None:
        error: Exception | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(0.2 * 2**attempt)
            try:
                await self._attempt(kind, digest, target, limit, accept)
                return
            except (aiohttp.ClientError, TimeoutError, _Retry) as failure:
                error = failure
        raise Unavailable(
            f"registry {self._reference.registry} does not answer or failed while pulling image "
            f"{self._reference.text}: {type(error).__name__}: {error}"
        )

    async def _attempt(self, kind: str, digest: str, target: bytearray | Path, limit: int, accept: str) -> None:
        image, registry = self._reference.text, self._reference.registry
        url = f"{self._base}/v2/{self._reference.repository}/{kind}/{digest}"
        # A proxy named in the environment is for the world outside.
        proxied = not is_loopback(registry)
        async with aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=proxied, auto_decompress=False) as session:
            async with self._get(session, url, accept) as response:
                if response.status == 404:
                    what = "image" if kind == "manifests" else f"blob {digest} of image"
                    raise NotFound(f"{what} {image} is not in registry {registry}")
                if response.status in (401, 403):
                    raise PermissionDenied(f"registry {registry} refused access to image {image}: check credentials")
                if response.status != 200:
                    raise _Retry(f"HTTP {response.status}")
                await _receive(response, digest, target, limit, image)

    @asynccontextmanager
    async def _get(
        self, session: aiohttp.ClientSession, url: str, accept: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        for first in (True, False):
            headers = {"Accept": accept, "Accept-Encoding": "identity"}
            if self._authorization:
                headers["Authorization"] = self._authorization
            async with session.get(url, headers=headers) as response:
                if response.status == 401 and first:
                    challenge = response.headers.get("WWW-Authenticate", "")
                    self._authorization = await self._authorize(session, challenge)
                    if self._authorization:
                        continue
                yield response
                return

    async def _authorize(self, session: aiohttp.ClientSession, challenge: str) -> str:
        """The Authorization header that a challenge asks for; empty when we have nothing to offer."""
        scheme, _, rest = challenge.partition(" ")
        secret = credentials(self._reference.registry)
        if scheme.lower() == "basic":
            return f"Basic {secret}" if secret else ""
        if scheme.lower() != "bearer":
            return ""
        fields = dict(_CHALLENGE.findall(rest))
        realm = fields.get("realm", "")
        if not realm.startswith(("https://", "http://")):
            return ""
        if secret and realm.startswith("http://") and self._base.startswith("https://"):
            secret = ""  # never in the clear because a registry says so
        query = {"scope": fields.get("scope") or f"repository:{self._reference.repository}:pull"}
        if "service" in fields:
            query["service"] = fields["service"]
        headers = {"Authorization": f"Basic {secret}"} if secret else {}
        async with session.get(realm, params=query, headers=headers) as response:
            if response.status >= 500:
                raise _Retry(f"its token service answered HTTP {response.status}")
            if response.status != 200:
                return ""
            try:
                document = json.loads(await response.content.read(1 << 20))
                token = document.get("token") or document.get("access_token")
            except (ValueError, AttributeError) as error:
                raise _Retry("its token service answered no token") from error
            return f"Bearer {token}" if token else ""


async def _receive(
    response: aiohttp.ClientResponse, digest: str, target: bytearray | Path, limit: int, image: str
) -> None:
    """The body, checked. A body that breaks off is worth another attempt, a whole one that is wrong is not."""
    found, received = hashlib.sha256(), 0
    if isinstance(target, bytearray):
        target.clear()
        file = None
    else:
        file = target.open("wb")
    try:
        async for chunk in response.content.iter_chunked(_CHUNK):
            received += len(chunk)
            if received > limit:
                raise DataLoss(f"blob {digest} of image {image} has more than the {limit} bytes it may have")
            found.update(chunk)
            if file is None:
                assert isinstance(target, bytearray)
                target.extend(chunk)
            else:
                file.write(chunk)
    finally:
        if file is not None:
            file.close()
    if response.content_length is not None and received < response.content_length:
        raise _Retry("the connection broke off")
    if "sha256:" + found.hexdigest() != digest:
        raise DataLoss(f"blob {digest} of image {image} came with other content (sha256:{found.hexdigest()})")


def credentials(registry: str, environment: Mapping[str, str] = os.environ) -> str:
    """base64 of user:password for a registry from Docker's config.json; empty when there is none."""
    folder = environment.get("DOCKER_CONFIG") or str(Path(environment.get("HOME", "/root")) / ".docker")
    try:
        auths = json.loads((Path(folder) / "config.json").read_bytes()).get("auths") or {}
    except (OSError, ValueError, AttributeError):
        return ""
    names = [registry, f"https://{registry}", f"http://{registry}"]
    if registry == "registry-1.docker.io":
        names += ["https://index.docker.io/v1/", "docker.io"]
    for name in names:
        entry = auths.get(name) if isinstance(auths, dict) else None
        if isinstance(entry, dict):
            if isinstance(entry.get("auth"), str):
                return str(entry["auth"])
            if "username" in entry and "password" in entry:
                return base64.b64encode(f"{entry['username']}:{entry['password']}".encode()).decode()
    return ""
