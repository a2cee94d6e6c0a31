"""The tunnel: where the router's requests enter a worker and leave it for the actor that is active there.

TLS with the router's certificate only; a request for any other actor is answered 421 with `X-Ate-Assignment-Stale`, so
that the router resolves again. Connections from the router are kept; to the actor they are kept for a second and only
for requests that may be repeated. Part of the ateom role.
"""

from __future__ import annotations

import contextlib
import json
import select
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Final, Protocol

import trio

from ate import http_framing as framing
from ate import log, names
from ate.errors import AteError
from ate.half_close import end_sending, receive, tell_breaks
from ate.http_framing import BadMessage, RequestHead
from ate.node.tunnel.admission import Admission, UnderWay
from ate.node.tunnel.exchange import Broken, Buffered, Exchange

_log = log.Logger(__name__)

UID_HEADER: Final = b"x-ate-actor-uid"
_HANDSHAKE_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 5.0
_KEPT_SECONDS: Final = 1.0
_KEPT_MOST: Final = 64
_REPEATABLE: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"})

Dial = Callable[[int], Awaitable[trio.abc.Stream]]
PeerCheck = Callable[[bytes | None], None]


class ContextProvider(Protocol):
    """Gives the TLS context of the next connection, so that a renewed certificate needs no restart."""

    def server_context(self) -> ssl.SSLContext: ...


async def dial_actor(port: int) -> trio.abc.Stream:
    """A connection to the active actor's port, from the worker's network namespace.

    A restored network stack remembers old connections; a SYN that happens to come from the port of one is not answered
    and would be repeated after a second only. Hence short patience, and another port.
    """
    patience = 0.1
    while True:
        with trio.move_on_after(patience):
            return await trio.open_tcp_stream(names.ACTOR_ADDRESS, port)
        patience *= 2


class Tunnel:
    """Serves connections until cancelled. `check_peer` raises for any certificate but the router's."""

    def __init__(
        self,
        provider: ContextProvider,
        check_peer: PeerCheck,
        admission: Admission,
        dial: Dial = dial_actor,
    ) -> None:
        self._provider, self._check_peer, self._dial = provider, check_peer, dial
        self.admission = admission
        self._kept: dict[int, list[tuple[float, Buffered]]] = {}

    async def serve(self, listener: trio.SocketListener) -> None:
        """Accepts for ever. Errors of one connection end that connection only."""
        await trio.serve_listeners(self._serve_socket, [listener])

    async def forget_connections(self) -> None:
        """Closes connections kept to the actor: before it is frozen, and when it is gone."""
        kept, self._kept = self._kept, {}
        for entries in kept.values():
            for _, actor in entries:
                await trio.aclose_forcefully(actor.stream)

    async def _serve_socket(self, raw: trio.SocketStream) -> None:
        try:
            secure = trio.SSLStream(raw, tell_breaks(self._provider.server_context()), server_side=True)
            with trio.fail_after(_HANDSHAKE_SECONDS):
                await secure.do_handshake()
            certificate = secure.getpeercert(binary_form=True)
        except (OSError, ssl.SSLError, trio.BrokenResourceError, trio.TooSlowError, AteError) as error:
            _log.info("connection to the tunnel refused", reason=str(error.__cause__ or error))
            await trio.aclose_forcefully(raw)
            return
        try:
            self._check_peer(certificate)
        except (AteError, ValueError) as error:
            _log.warning("connection to the tunnel refused", reason=str(error))
            await _answer(Buffered(secure, "router"), 403, f"only the router may use this tunnel: {error}")
            await trio.aclose_forcefully(secure)
            return
        await self.serve_stream(secure)

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serves one connection whose peer is known to be the router."""
        router = Buffered(stream, "router")
        clean = False
        try:
            while await self._serve_request(router):
                pass
            clean = True
        except BadMessage as error:
            await _answer(router, error.status, error.reason)
            clean = True
        except Broken as error:
            # Closed without TLS's goodbye, so that a cut response never looks complete.
            _log.debug("exchange broken off", side=error.side)
        finally:
            if clean:
                with trio.move_on_after(2) as scope, contextlib.suppress(trio.BrokenResourceError):
                    scope.shield = True
                    await end_sending(stream)
                    # Closing with bytes unread resets the connection, and the router may lose our last answer to that.
                    while await receive(stream):
                        pass
            await trio.aclose_forcefully(stream)

    async def _serve_request(self, router: Buffered) -> bool:
        """Serves the next request; False when the connection is to be closed."""
        head = await router.head()
        if head is None:
            return False
        request = framing.parse_request(head)
        body = framing.request_body(request)
        refusal = self._refusal(request)
        if refusal is not None:
            status, reason, extra = refusal
            reusable = body.done and framing.keeps_alive(request.version, request.headers)
            await _answer(router, status, reason, extra, keep=reusable)
            return reusable
        with self.admission.under_way() as under_way:
            reusable = await self._forward(router, request, body, under_way)
        if under_way.scope.cancelled_caught:
            raise Broken("actor")  # cut by a checkpoint whose grace is over
        return reusable

    def _refusal(self, request: RequestHead) -> tuple[int, str, framing.Headers] | None:
        if request.method == b"CONNECT":
            return 405, "CONNECT is not supported here", ()
        uid = _one(request, UID_HEADER)
        ref = _one(request, names.TARGET_ACTOR_HEADER.lower().encode())
        if not uid and not ref:
            return 400, f"the request names no actor: {names.TARGET_ACTOR_HEADER} is missing", ()
        if not self.admission.matches(uid, ref):
            stale = ((names.ASSIGNMENT_STALE_HEADER.encode(), b"true"),)
            return 421, f"actor {ref or uid} is not active on this worker", stale
        return None

    async def _forward(self, router: Buffered, request: RequestHead, body: framing.Body, under_way: UnderWay) -> bool:
        port = _port(request)
        outgoing = replace(
            request,
            headers=framing.without(request.headers, (names.TARGET_ACTOR_HEADER.lower().encode(),), b"x-ate-"),
        )
        # A kept connection may end just as we use it; only a request that can be sent again may risk that.
        actor = self._kept_connection(port) if request.method in _REPEATABLE and body.done else None
        if actor is not None:
            try:
                return await self._exchange(router, actor, port, outgoing, body, under_way)
            except Broken as error:
                if not error.nothing_received:
                    raise
        # A server that serves one connection at a time would not accept another while an idle one is kept.
        for _, idle in self._kept.pop(port, []):
            await trio.aclose_forcefully(idle.stream)
        try:
            with trio.fail_after(_CONNECT_SECONDS):
                actor = Buffered(await self._dial(port), "actor")
        except (OSError, trio.TooSlowError) as error:
            status = 504 if isinstance(error, trio.TooSlowError) else 502
            await _answer(router, status, f"the actor does not answer on port {port}: {error}")
            return False
        try:
            return await self._exchange(router, actor, port, outgoing, body, under_way)
        except Broken as error:
            if not error.nothing_received:
                raise
            await _answer(router, 502, "the actor closed the connection without an answer")
            return False

    async def _exchange(
        self,
        router: Buffered,
        actor: Buffered,
        port: int,
        request: RequestHead,
        body: framing.Body,
        under_way: UnderWay,
    ) -> bool:
        """One exchange over one connection, which is then kept or closed; whether the router's can be used again.

        Raises Broken; with `nothing_received` the actor sent no byte of a response, so another may still be sent.
        """

        def answered() -> None:
            under_way.answered = True

        exchange = Exchange(router, actor, self.admission.touch, answered)
        try:
            await exchange.run(request, body)
        except BadMessage as error:
            if exchange.response_begun:
                raise Broken("actor") from error
            raise
        finally:
            # A cancelled exchange (cut before a checkpoint) leaves nothing to keep.
            if exchange.actor_reusable and self.admission.actor is not None:
                self._keep(port, actor)
            else:
                await trio.aclose_forcefully(actor.stream)
        return exchange.router_reusable

    def _kept_connection(self, port: int) -> Buffered | None:
        entries = self._kept.get(port, [])
        oldest = trio.current_time() - _KEPT_SECONDS
        while entries:
            since, actor = entries.pop()
            if since >= oldest and not _readable(actor.stream):
                return actor
            _close_now(actor.stream)
        return None

    def _keep(self, port: int, actor: Buffered) -> None:
        entries = self._kept.setdefault(port, [])
        entries.append((trio.current_time(), actor))
        oldest = trio.current_time() - _KEPT_SECONDS
        while entries and (entries[0][0] < oldest or len(entries) > _KEPT_MOST):
            _close_now(entries.pop(0)[1].stream)


def _readable(stream: trio.abc.Stream) -> bool:
    """Whether an idle connection has something to read, which can only be its end or a fault."""
    if not isinstance(stream, trio.SocketStream):
        return False
    return bool(select.select([stream.socket.fileno()], [], [], 0)[0])


def _close_now(stream: trio.abc.Stream) -> None:
    if isinstance(stream, trio.SocketStream):
        stream.socket.close()


def _one(request: RequestHead, name: bytes) -> str:
    """The value of a header that may come once only; '' when absent."""
    found = framing.values(request.headers, name)
    if len(found) > 1:
        raise BadMessage(f"{name.decode()} is given {len(found)} times")
    return found[0].decode("latin-1") if found else ""


def _port(request: RequestHead) -> int:
    text = _one(request, names.TARGET_PORT_HEADER.lower().encode()) or "80"
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise BadMessage(f"{names.TARGET_PORT_HEADER} is not a port: {text[:20]!r}")
    return int(text)


async def _answer(
    router: Buffered, status: int, message: str, extra: framing.Headers = (), *, keep: bool = False
) -> None:
    """Our own response, as JSON; the connection's end is announced unless it is kept."""
    body = json.dumps({"message": message}).encode()
    headers = [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body)), *extra]
    if not keep:
        headers.append((b"Connection", b"close"))
    reason = HTTPStatus(status).phrase.encode()
    head = framing.ResponseHead(b"HTTP/1.1", status, reason, tuple(headers))
    with contextlib.suppress(Broken):
        with trio.move_on_after(5):
            await router.send(framing.encode_response(head) + body)
