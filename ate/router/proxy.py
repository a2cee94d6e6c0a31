"""The HTTP data plane, in the asyncio thread: one handler that carries a request to its actor and the answer back.

Bodies stream both ways; header case, `Host` and repeated headers stay as they came. A request is sent again only when
it provably did not reach the actor: the worker said 421 (stale assignment) or no connection was made; what was read of
its body until then is kept for that, up to a bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from ate.errors import AteError
from ate.log import Logger
from ate.names import ASSIGNMENT_STALE_HEADER, TARGET_ACTOR_HEADER, TARGET_PORT_HEADER, Ref
from ate.router import answers
from ate.router.answers import Answer
from ate.router.parking import ParkingLot
from ate.router.resolver import Full, Route
from ate.router.upgrade import carry_upgrade
from ate.router.upstream import UpstreamTls

log = Logger("ate.router")

Resolve = Callable[[Ref], Awaitable[Route]]

ROUTES_KEPT: Final = 100_000
BODY_KEPT: Final = 1 << 20
"""Bytes of a request body kept for sending it again; beyond that a 421 is answered to the client."""
ATTEMPTS: Final = 3
CONNECT_TIMEOUT: Final = 5.0
UPSTREAM_KEPT: Final = 15.0
"""Seconds an idle connection to a worker is kept for the next request."""
IDLE_TIMEOUT: Final = 300.0
"""Seconds without a byte from the actor; there is no limit on a request as a whole (reference: max(5 min, route))."""
_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
_OURS: Final = ("x-ate-",)
ACTOR_UID_HEADER: Final = "X-Ate-Actor-Uid"


class Proxy:
    """`handle` is the aiohttp handler of every path. `routes` is the memory the hot path looks in."""

    def __init__(self, resolve: Resolve, lot: ParkingLot, tls: UpstreamTls) -> None:
        self._resolve, self._lot, self._tls = resolve, lot, tls
        self._routes: dict[Ref, Route] = {}
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Opens the upstream pool; call in the loop."""
        connector = aiohttp.TCPConnector(
            limit=0, limit_per_host=0, keepalive_timeout=UPSTREAM_KEPT, enable_cleanup_closed=False
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=IDLE_TIMEOUT)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "CONNECT":
            return _reply(Answer(405, "CONNECT is not supported"))
        target = answers.parse_target(request.headers.getall(TARGET_ACTOR_HEADER, []))
        if isinstance(target, Answer):
            return _reply(target)
        body = _Body(request)
        answer = answers.unreachable(target, "its worker does not answer")
        for _ in range(ATTEMPTS):
            began = time.perf_counter()
            woke = target not in self._routes
            try:
                route = self._routes.get(target) or await self._find(target)
            except Full:
                return _reply(Answer(503, answers.AT_CAPACITY, int(self._lot.retry_after())))
            except AteError as error:
                return _reply(answers.for_error(target, error, retry_after=self._lot.retry_after()))
            resolved = time.perf_counter()
            outcome = await self._attempt(request, target, route, body)
            if woke:
                log.info(
                    "route found",
                    actor=str(target),
                    worker=route.worker_uid,
                    resolve_ms=round((resolved - began) * 1e3, 2),
                    exchange_ms=round((time.perf_counter() - resolved) * 1e3, 2),
                )
            if isinstance(outcome, web.StreamResponse):
                return outcome
            answer = outcome
            self._forget(target, route)
            if not body.repeatable:
                break
        return _reply(answer)

    async def _find(self, ref: Ref) -> Route:
        route = await self._resolve(ref)
        self._routes[ref] = route
        if len(self._routes) > ROUTES_KEPT:
            self._routes.pop(next(iter(self._routes)))
        return route

    def _forget(self, ref: Ref, route: Route) -> None:
        if self._routes.get(ref) == route:
            del self._routes[ref]

    async def _attempt(
        self, request: web.BaseRequest, ref: Ref, route: Route, body: _Body
    ) -> web.StreamResponse | Answer:
        """The response, or the answer to give if the request cannot be sent again."""
        headers = _forwarded(request, ref, route)
        if _wants_upgrade(request):
            return await carry_upgrade(request, route, headers, self._tls.context())
        assert self._session is not None
        url = URL(f"https://{_bracket(route.host)}:{route.port}{_origin_form(request)}", encoded=True)
        try:
            upstream = await self._session.request(
                request.method,
                url,
                headers=headers,
                data=body.stream() if body.present else None,
                allow_redirects=False,
                ssl=self._tls.context(),
                server_hostname=route.worker_uid,
            )
        except aiohttp.ClientConnectorError as error:
            log.info("worker not reached", actor=str(ref), worker=route.worker_uid, error=str(error))
            return answers.unreachable(ref, "its worker does not answer")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._forget(ref, route)
            if isinstance(error, TimeoutError):
                return _reply(Answer(504, f"actor {ref} request timed out"))
            log.info("exchange with the worker broke", actor=str(ref), worker=route.worker_uid, error=repr(error))
            return _reply(answers.unreachable(ref, "the connection to it broke before it answered"))
        async with upstream:
            if upstream.status == 421 and ASSIGNMENT_STALE_HEADER in upstream.headers:
                return answers.unreachable(ref, "it moved to another worker; send the request again")
            return await _relay(request, upstream, ref)


class _Body:
    """The request body, replayed from its beginning for another attempt as long as what was read fits the bound."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self.present = request.body_exists
        self._kept: list[bytes] = []
        self._size = 0
        self.repeatable = True

    async def stream(self) -> AsyncIterator[bytes]:
        for chunk in list(self._kept):
            yield chunk
        while True:
            chunk = await self._request.content.readany()
            if not chunk:
                return
            self._size += len(chunk)
            if self._size <= BODY_KEPT:
                self._kept.append(chunk)
            else:
                self.repeatable = False
                self._kept.clear()
            yield chunk


async def _relay(request: web.BaseRequest, upstream: aiohttp.ClientResponse, ref: Ref) -> web.StreamResponse:
    """Streams the actor's answer. One that breaks off is broken off towards the client too, never ended cleanly."""
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=_answered(upstream))
    if "Content-Type" not in upstream.headers:
        response.headers.pop("Content-Type", None)
    length = upstream.headers.get("Content-Length")
    if length is None and request.method != "HEAD" and upstream.status not in (204, 304) and request.version >= (1, 1):
        response.enable_chunked_encoding()
    await response.prepare(request)
    try:
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        log.warning("the actor's answer broke off", actor=str(ref), error=repr(error))
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError from error
    await response.write_eof()
    return response


def _forwarded(request: web.BaseRequest, ref: Ref, route: Route) -> CIMultiDict[str]:
    """Headers for the tunnel: the client's, less hop-by-hop ones and any that only the router may set."""
    dropped = _HOP_BY_HOP | _named_by_connection(request)
    upgrade = _wants_upgrade(request)
    headers: CIMultiDict[str] = CIMultiDict()
    port = "80"
    for raw_name, raw_value in request.raw_headers:
        name, value = raw_name.decode("ascii", "replace"), raw_value.decode("utf-8", "surrogateescape")
        lower = name.lower()
        if lower == TARGET_PORT_HEADER.lower():
            port = value.strip()
        if lower.startswith(_OURS) or lower == TARGET_ACTOR_HEADER:
            continue
        if lower in dropped and not (upgrade and lower in ("connection", "upgrade")):
            continue
        headers.add(name, value)
    headers[TARGET_ACTOR_HEADER] = str(ref)
    headers[ACTOR_UID_HEADER] = route.actor_uid
    headers[TARGET_PORT_HEADER] = port if port.isdigit() else "80"
    return headers


def _answered(upstream: aiohttp.ClientResponse) -> CIMultiDict[str]:
    connection = {
        token.strip().lower() for value in upstream.headers.getall("Connection", []) for token in value.split(",")
    }
    headers: CIMultiDict[str] = CIMultiDict()
    for raw_name, raw_value in upstream.raw_headers:
        name = raw_name.decode("ascii", "replace")
        if name.lower() in _HOP_BY_HOP or name.lower() in connection or name.lower().startswith(_OURS):
            continue
        headers.add(name, raw_value.decode("utf-8", "surrogateescape"))
    return headers


def _named_by_connection(request: web.BaseRequest) -> frozenset[str]:
    values = request.headers.getall("Connection", [])
    return frozenset(token.strip().lower() for value in values for token in value.split(","))


def _wants_upgrade(request: web.BaseRequest) -> bool:
    return "upgrade" in _named_by_connection(request) and "Upgrade" in request.headers


def _origin_form(request: web.BaseRequest) -> str:
    """The request target as it came; an absolute one is cut to its path."""
    path = request.raw_path
    if "://" in path.split("/", 1)[0] + "//":
        path = str(URL(path, encoded=True).relative()) if "://" in path else path
    return path if path.startswith("/") else "/" + path


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _reply(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, text=answer.body, headers=_plain(answer))


def _plain(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name != "Content-Type"}
