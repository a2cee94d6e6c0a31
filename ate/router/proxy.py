"""The HTTP data plane, in the asyncio thread: clients' connections, and for each request the way to its actor.

Routes are looked up in memory; only a miss crosses to trio. A request is sent again only when it provably did not reach
the actor: the worker said 421 (stale assignment), or no connection to it was made, and what was read of the body is
still at hand. A connection that breaks later is told to the client as what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from ate import http_framing as framing
from ate.errors import AteError
from ate.http_framing import BadMessage, RequestHead
from ate.log import Logger
from ate.names import Ref
from ate.router import answers, headers
from ate.router.answers import Answer
from ate.router.exchange import Exchange, Outcome, RequestBody
from ate.router.parking import ParkingLot
from ate.router.resolver import Full, Route, routed
from ate.router.upgrade import TrioWire, Upgrades
from ate.router.upstream import Unreachable, UpstreamPool
from ate.router.wire import Broken, Wire
from ate.telemetry import trace

log = Logger("ate.router")

Resolve = Callable[[Ref], Awaitable[Route]]

ROUTES_KEPT: Final = 100_000
ATTEMPTS: Final = 3
"""Workers tried for one request at least; more while the parking budget lasts."""
PAUSE_MOST: Final = 0.5
"""Seconds between attempts: a worker that is just lost is still assigned until the control plane knows."""
IDLE_CLIENT: Final = 75.0
"""Seconds a client's connection is kept without a request."""
HEAD_TIMEOUT: Final = 30.0
"""Seconds for a request's head, from its first byte."""
FIRST_REQUEST: Final = 1.0
"""Seconds that a draining router waits for the first request of a new connection."""
LINGER: Final = 2.0
"""Seconds of reading on after the last answer: closing with bytes unread is a reset, which may cost the client that."""


class Proxy:
    """`accept` takes a new connection. `routes` is the memory the hot path looks in."""

    def __init__(self, resolve: Resolve, lot: ParkingLot, pool: UpstreamPool, upgrades: Upgrades) -> None:
        self._resolve, self._lot, self._pool, self._upgrades = resolve, lot, pool, upgrades
        self._routes: dict[Ref, Route] = {}
        self._tasks: dict[asyncio.Task[None], Wire] = {}
        self._between: dict[Wire, bool] = {}
        """Connections that wait for the first byte of a request, and whether it is their first one."""
        self._draining = False

    def accept(self, client: Wire) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self._tasks[task] = client
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def drain(self, seconds: float) -> int:
        """Ends idle connections, lets requests under way finish, then breaks off the rest; how many were broken off."""
        self._draining = True
        self._close_idle(first=False)
        # A client that has just connected has its request on the way, and no reason to expect that it is not taken.
        asyncio.get_running_loop().call_later(min(FIRST_REQUEST, seconds / 2), self._close_idle)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=seconds)
        cut = len(self._tasks)
        for task, client in list(self._tasks.items()):
            client.abort()
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=5)
        self._pool.close()
        return cut

    def _close_idle(self, *, first: bool = True) -> None:
        for client, is_first in list(self._between.items()):
            # With bytes in the buffer its request has arrived, though its task does not know yet.
            if client.idle and (first or not is_first):
                client.close()

    @property
    def open_connections(self) -> int:
        return len(self._tasks)

    # -- one connection ---------------------------------------------------------------------------------------------

    async def _serve(self, client: Wire) -> None:
        try:
            first = True
            while await self._next(client, first=first):
                first = False
            await _linger(client)
            client.close()
        except (Broken, TimeoutError):
            client.abort()
        except asyncio.CancelledError:
            client.close()  # the client left, or the router stops and has broken it off
        except Exception as error:
            log.error("a client's connection failed", exc=error)
            client.abort()

    async def _next(self, client: Wire, *, first: bool) -> bool:
        """Serves the next request; False when the connection is to be closed. Raises Broken, TimeoutError."""
        try:
            head = await self._head(client, first=first)
            if head is None:
                return False
            request = framing.parse_request(head)
            body = RequestBody(client, framing.request_body(request))
            target = headers.target(request)
        except BadMessage as error:
            await _send(client, Answer(error.status, error.reason), keep=False)
            return False
        task = asyncio.current_task()
        assert task is not None

        def left() -> None:
            if client.lost or body.read:  # before the body is read, its reader finds out
                task.cancel()

        client.on_leaving = left
        try:
            if isinstance(target, Answer):
                return await self._reply(client, request, body, target)
            return await self._carry(client, request, body, target)
        finally:
            client.on_leaving = None

    async def _head(self, client: Wire, *, first: bool) -> bytes | None:
        if not framing.find_head(client.buffer):
            if not client.buffer:
                if self._draining and not first:
                    return None
                self._between[client] = first
                try:
                    async with asyncio.timeout(IDLE_CLIENT):
                        if not await client.fill():
                            return None
                except (Broken, TimeoutError):
                    return None  # nothing was asked
                finally:
                    self._between.pop(client, None)
            async with asyncio.timeout(HEAD_TIMEOUT):
                return await client.head()
        return await client.head()

    # -- one request ------------------------------------------------------------------------------------------------

    async def _carry(self, client: Wire, request: RequestHead, body: RequestBody, ref: Ref) -> bool:
        """As `_carry_on`, in the request's trace."""
        with trace.serving("route", headers.trace_of(request)) as span:
            if isinstance(span, trace.Span):
                span.set(http__request__method=request.method.decode("latin-1"), ate__actor=str(ref))
            return await self._carry_on(client, request, body, ref)

    async def _carry_on(self, client: Wire, request: RequestHead, body: RequestBody, ref: Ref) -> bool:
        """Finds the actor and carries the request, on to the next worker while that is safe; as `_next`."""
        upgrade = headers.wants_upgrade(request)
        given_up = time.monotonic() + self._lot.rules.budget
        attempt = 0
        while True:
            attempt += 1
            began = time.perf_counter()
            woke = ref not in self._routes
            try:
                route = self._routes.get(ref) or await self._find(ref)
            except Full:
                answer = Answer(503, answers.AT_CAPACITY, int(self._lot.retry_after()))
                return await self._reply(client, request, body, answer)
            except AteError as error:
                answer = answers.for_error(ref, error, retry_after=self._lot.retry_after())
                return await self._reply(client, request, body, answer)
            resolved = time.perf_counter()
            if not woke:
                routed(resolved - began, route, "none", "served")
            try:
                upstream = await (self._upgrades.dial(route) if upgrade else self._pool.take(route))
            except Unreachable as error:
                log.info("worker not reached", actor=str(ref), worker=route.worker_uid, error=str(error))
                answer = answers.unreachable(ref, "its worker does not answer")
            else:
                kept = await self._exchange(client, upstream, request, body, ref, route, upgrade)
                if kept is not None:
                    if woke:
                        log.info(
                            "route found",
                            actor=str(ref),
                            worker=route.worker_uid,
                            resolve_ms=round((resolved - began) * 1e3, 2),
                            exchange_ms=round((time.perf_counter() - resolved) * 1e3, 2),
                        )
                    return kept
                answer = answers.unreachable(ref, "it moved to another worker; send the request again")
            self._forget(ref, route)
            if not body.repeatable or (attempt >= ATTEMPTS and time.monotonic() > given_up):
                return await self._reply(client, request, body, answer)
            if attempt > 1:
                await asyncio.sleep(min(0.02 * 2**attempt, PAUSE_MOST))

    async def _exchange(
        self,
        client: Wire,
        upstream: Wire | TrioWire,
        request: RequestHead,
        body: RequestBody,
        ref: Ref,
        route: Route,
        upgrade: bool,
    ) -> bool | None:
        """As `_next`; None when the worker said that the actor is not there."""
        exchange = Exchange(client, upstream, request, body, lambda: self._keeps(request))
        joined = False
        try:
            outcome = await exchange.run(headers.forwarded(request, ref, route), upgrade=upgrade)
            if outcome is Outcome.SWITCHED:
                assert exchange.switched is not None and isinstance(upstream, TrioWire)
                joined = True
                head = headers.answered(exchange.switched, keep=True, version=request.version)
                await self._upgrades.join(client, head, upstream)
                return False
            return None if outcome is Outcome.STALE else outcome is Outcome.KEEP
        except (Broken, BadMessage) as error:
            self._forget(ref, route)
            answer = _answer_to_fault(exchange, error, ref)
            if answer is None:
                log.info("exchange broken off", actor=str(ref), worker=route.worker_uid, error=str(error))
                client.abort()
                raise Broken("client") from error
            log.info("exchange failed", actor=str(ref), worker=route.worker_uid, status=answer.status)
            return await self._reply(client, request, body, answer)
        finally:
            if exchange.upstream_reusable and isinstance(upstream, Wire):
                self._pool.keep(route, upstream)
            elif not joined:
                upstream.abort()

    async def _find(self, ref: Ref) -> Route:
        route = await self._resolve(ref)
        self._routes[ref] = route
        if len(self._routes) > ROUTES_KEPT:
            self._routes.pop(next(iter(self._routes)))
        return route

    def _forget(self, ref: Ref, route: Route) -> None:
        if self._routes.get(ref) == route:
            del self._routes[ref]

    def _keeps(self, request: RequestHead) -> bool:
        return not self._draining and framing.keeps_alive(request.version, request.headers)

    async def _reply(self, client: Wire, request: RequestHead, body: RequestBody, answer: Answer) -> bool:
        """The router's own answer; a body that is there already is read away, another one ends the connection."""
        with contextlib.suppress(BadMessage):  # such a body is never read to its end, which ends the connection
            body.at_hand()
        keep = body.read and self._keeps(request)
        await _send(client, answer, keep=keep, head_only=request.method == b"HEAD", version=request.version)
        return keep


def _answer_to_fault(exchange: Exchange, error: Broken | BadMessage, ref: Ref) -> Answer | None:
    """What a client is told of an exchange that failed; None when its connection has to be broken off instead."""
    if exchange.begun or (isinstance(error, Broken) and error.side == "client"):
        return None
    if exchange.timed_out:
        return Answer(504, f"actor {ref} request timed out")
    if isinstance(error, BadMessage):
        if error is exchange.client_fault:
            return Answer(error.status, error.reason)
        return Answer(502, f"actor {ref}: its answer is not HTTP/1.1 as it should be: {error.reason}")
    return Answer(502, f"actor {ref} unavailable: the connection to it broke before it answered; it may have run")


async def _send(
    client: Wire, answer: Answer, *, keep: bool, head_only: bool = False, version: bytes = b"HTTP/1.1"
) -> None:
    body = answer.body.encode()
    fields = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
    fields.append((b"Content-Length", b"%d" % len(body)))
    response = framing.ResponseHead(
        b"HTTP/1.1", answer.status, HTTPStatus(answer.status).phrase.encode(), tuple(fields)
    )
    await client.send(headers.answered(response, keep=keep, version=version) + (b"" if head_only else body))


async def _linger(client: Wire) -> None:
    if client.ended or client.lost:
        return
    try:
        async with asyncio.timeout(LINGER):
            if client.transport.can_write_eof():
                client.transport.write_eof()
            client.buffer.clear()
            while await client.fill():
                client.buffer.clear()
    except (Broken, TimeoutError, OSError, RuntimeError):
        pass  # it left, or it never will
