"""The API server's HTTP: requests, server-side apply, lists by pages, and watches. Called from trio, runs in the room.

Its errors are ours (`ate.errors`): NotFound, AlreadyExists, Aborted (conflict), OutOfRange (the version asked for is
gone: list again), InvalidArgument (refused with a reason), PermissionDenied, Unavailable. A refused rate (429) and an
expired credential are met here: the one by waiting as told, the other by reading the access anew (a watch ends all the
same, with Unauthenticated, and its caller begins another).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
import trio

from ate import __version__
from ate.asyncio_room import AsyncioRoom
from ate.controller.kubernetes.access import Access, Source, load_access
from ate.controller.kubernetes.resources import Object, Resource, version_of
from ate.errors import (
    Aborted,
    AlreadyExists,
    AteError,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)

TIMEOUT: Final = 30.0
PAGE: Final = 500
WATCH_SECONDS: Final = 290
"""The API server ends a watch then; it is below the idle limits of common load balancers' (350 s and more)."""
SILENCE: Final = 90.0
"""Bookmarks come about once a minute: a watch that is silent for longer is dead, whatever the connection says."""
_MOST_WAITS: Final = 5
_LONGEST_WAIT: Final = 30.0

Handle = Callable[[str, Object], None]
"""Takes an event: ADDED, MODIFIED, DELETED or BOOKMARK, and the object."""


class KubeClient:
    """Use `open_client`."""

    def __init__(self, room: AsyncioRoom, session: aiohttp.ClientSession, source: Source, access: Access) -> None:
        self._room, self._session, self._source, self._access = room, session, source, access
        self.requests = 0
        """Sent so far, watches included."""

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        return await self._request("GET", resource.path(namespace, name))

    async def list(self, resource: Resource, namespace: str = "", *, labels: str = "") -> tuple[list[Object], str]:
        """(objects, the version to watch from), by pages."""
        items: list[Object] = []
        query = {"limit": str(PAGE), **_selected(labels)}
        while True:
            page = await self._request("GET", resource.path(namespace), query=query)
            items += page.get("items") or ()
            token = page["metadata"].get("continue")
            if not token:
                return items, version_of(page)
            query["continue"] = token

    async def create(self, resource: Resource, body: Object, namespace: str = "") -> Object:
        return await self._request("POST", resource.path(namespace), body=body)

    async def replace(self, resource: Resource, body: Object, subresource: str = "") -> Object:
        """Aborted unless the version in `body` is the present one."""
        meta = body["metadata"]
        return await self._request(
            "PUT", resource.path(meta.get("namespace", ""), meta["name"], subresource), body=body
        )

    async def apply(self, resource: Resource, body: Object, manager: str, subresource: str = "") -> Object:
        """Server-side apply, taking the fields of `body` from whoever has them."""
        meta = body["metadata"]
        path = resource.path(meta.get("namespace", ""), meta["name"], subresource)
        query = {"fieldManager": manager, "force": "true"}
        return await self._request("PATCH", path, query=query, body=body, kind="application/apply-patch+yaml")

    async def patch(
        self, resource: Resource, name: str, body: Object, namespace: str = "", subresource: str = ""
    ) -> Object:
        """A JSON merge patch."""
        path = resource.path(namespace, name, subresource)
        return await self._request("PATCH", path, body=body, kind="application/merge-patch+json")

    async def delete(self, resource: Resource, name: str, namespace: str = "", *, uid: str = "") -> None:
        """With dependents in the background. `uid` guards against deleting a successor of the same name."""
        body: Object = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        await self._request("DELETE", resource.path(namespace, name), body=body)

    async def watch(
        self, resource: Resource, version: str, handle: Handle, namespace: str = "", *, labels: str = ""
    ) -> None:
        """Tells of every change after `version` until the server ends the watch. OutOfRange: list again."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            **_selected(labels),
        }

        async def take(lines: Sequence[bytes]) -> None:
            for line in lines:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error(event["object"].get("code", 0), event["object"], f"watching {resource.plural}")
                handle(event["type"], event["object"])

        async def read() -> None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=SILENCE)
            async with await self._send("GET", resource.path(namespace), query, timeout=timeout) as response:
                if response.status != 200:
                    raise _error(response.status, await _status(response), f"watching {resource.plural}")
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    await self._room.in_trio(take, [line for line in lines if line])

        try:
            await self._run(read, f"watching {resource.plural}")
        except Unauthenticated:
            await self._renew()
            raise

    async def _request(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        kind: str = "application/json",
    ) -> Object:
        what = f"{verb} {path}"

        async def ask() -> tuple[int, float, Object]:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT)
            async with await self._send(verb, path, query, body, kind, timeout=timeout) as response:
                return response.status, _seconds(response), await _status(response)

        renewed, waits = False, 0
        while True:
            status, pause, answer = await self._run(ask, what)
            assert isinstance(answer, dict)
            if status < 300:
                return answer
            if status == 401 and not renewed:
                renewed = True
                await self._renew()
            elif status == 429 and waits < _MOST_WAITS:
                waits += 1
                await trio.sleep(pause)
            else:
                raise _error(status, answer, what)

    async def _renew(self) -> None:
        """Reads the access anew: the credential has expired, or the cluster has other authorities."""
        self._access = await load_access(self._source)

    async def _send(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Object | None = None,
        kind: str = "application/json",
        *,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        self.requests += 1
        access = self._access
        headers = await self._room.loop.run_in_executor(None, access.headers)
        headers["Accept"] = "application/json"
        if body is not None:
            headers["Content-Type"] = kind
        data = None if body is None else json.dumps(body)
        return await self._session.request(
            verb, access.server + path, params=query, data=data, headers=headers, ssl=access.tls, timeout=timeout
        )

    async def _run(self, work: Callable[[], Coroutine[Any, Any, Any]], what: str) -> Any:
        try:
            return await self._room.run(work)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"{what}: the API server cannot be reached: {error or type(error).__name__}") from error


def _selected(labels: str) -> dict[str, str]:
    return {"labelSelector": labels} if labels else {}


def _seconds(response: aiohttp.ClientResponse) -> float:
    """How long the server asks to wait, within reason."""
    text = response.headers.get("Retry-After", "1")
    return min(float(text) if text.isdigit() else 1.0, _LONGEST_WAIT)


async def _status(response: aiohttp.ClientResponse) -> Object:
    """The answer's object; a Status with the text where a proxy answered with something else."""
    text = await response.text()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"message": text[:500]}


def _error(status: int, answer: Object, what: str) -> AteError:
    message, reason = f"{what}: {answer.get('message') or status}", answer.get("reason", "")
    if reason == "AlreadyExists":
        return AlreadyExists(message)
    if status >= 500:
        return Unavailable(message)
    return _ERRORS.get(status, InvalidArgument)(message)


_ERRORS: Final[dict[int, type[AteError]]] = {
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    409: Aborted,
    410: OutOfRange,
    429: ResourceExhausted,
}


@asynccontextmanager
async def open_client(room: AsyncioRoom, source: Source) -> AsyncIterator[KubeClient]:
    """For the length of the block. FailedPrecondition without access to a cluster."""
    access = await load_access(source)

    async def open_session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            headers={"User-Agent": f"ate/{__version__}"}, connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
        )

    session = await room.run(open_session)
    try:
        yield KubeClient(room, session, source, access)
    finally:
        with trio.CancelScope(shield=True):
            await room.run(session.close)
