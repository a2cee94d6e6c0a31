"""One request and its answer, carried between a client's connection and a worker's, in the asyncio thread.

Bodies stream both ways at once; what was read of a request's body is kept, up to a bound, for sending it again to
another worker. Decides nothing about retries: proxy.py does.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Final, Protocol

from ate import http_framing as framing
from ate.http_framing import BadMessage, Body, RequestHead, ResponseHead
from ate.names import ASSIGNMENT_STALE_HEADER
from ate.router import headers
from ate.router.wire import Broken, Source, Wire

BODY_KEPT: Final = 1 << 20
"""Bytes of a request body kept for sending it again; beyond that a stale assignment is answered to the client."""
IDLE_TIMEOUT: Final = 300.0
"""Seconds without a byte either way; a request as a whole has no limit (reference: idle is max(5 min, route))."""
_STALE: Final = ASSIGNMENT_STALE_HEADER.lower().encode()


class Upstream(Protocol):
    """What an exchange needs of a worker's connection: `Wire`, or the one of an upgrade, which lives in trio."""

    buffer: bytearray
    last_byte: float

    async def fill(self) -> bool: ...
    async def head(self) -> bytes | None: ...
    def take(self, body: Body) -> bytes: ...
    async def send(self, data: bytes) -> None: ...
    def abort(self) -> None: ...


class RequestBody:
    """A request's body, streamed from the client and replayed from its beginning while what was read fits the bound."""

    def __init__(self, client: Source, body: Body) -> None:
        self._client, self._body = client, body
        self._kept: list[bytes] = []
        self._size = 0
        self._malformed = False
        self.repeatable = True

    @property
    def read(self) -> bool:
        """Whether the client's connection is past this body."""
        return self._body.done

    def at_hand(self) -> bytes:
        """What an attempt begins with: all that was read before, and what can be had without waiting."""
        if not self._body.done and self._client.buffer and not self._malformed:
            self._next()
        return b"".join(self._kept)

    async def more(self) -> bytes:
        """The next piece. Raises Broken or BadMessage for what the client did."""
        if not self._client.buffer and not await self._client.fill():
            raise Broken(self._client.side)
        return self._next()

    def _next(self) -> bytes:
        try:
            piece = self._client.take(self._body)
        except BadMessage:
            self._malformed = True  # nothing after this may be read as part of it, or as another request
            raise
        self._size += len(piece)
        if self.repeatable:
            self._kept.append(piece)
        return piece

    def dispatched(self) -> None:
        """What was kept is with the worker; too much of it is let go, and the request cannot be sent again."""
        if self._size > BODY_KEPT:
            self.repeatable = False
            self._kept.clear()


class Outcome(enum.Enum):
    KEEP = "the client's connection takes another request"
    CLOSE = "the client's connection ends after this answer"
    STALE = "the actor is not on this worker; nothing was sent to the client"
    SWITCHED = "the actor switched protocols; nothing was sent to the client"


class Exchange:
    """Carries one request once. `may_keep` says whether the client's connection is wanted after it."""

    def __init__(
        self, client: Wire, upstream: Upstream, request: RequestHead, body: RequestBody, may_keep: Callable[[], bool]
    ) -> None:
        self._client, self._upstream, self._request, self._body = client, upstream, request, body
        self._may_keep = may_keep
        self.begun = False
        """Whether the client got a byte of the final answer."""
        self.timed_out = False
        self.upstream_reusable = False
        self.switched: ResponseHead | None = None
        self.client_fault: Broken | BadMessage | None = None
        """What the client did wrong while its body was carried."""

    async def run(self, head: bytes, *, upgrade: bool = False) -> Outcome:
        """Raises Broken or BadMessage; `begun`, `timed_out` and `client_fault` then say what can still be done."""
        loop = asyncio.get_running_loop()
        upload: asyncio.Task[None] | None = None
        self._timer = loop.call_later(IDLE_TIMEOUT, self._watch)
        try:
            try:
                first = head + self._body.at_hand()
            except BadMessage as error:
                self.client_fault = error
                raise
            await self._upstream.send(first)
            self._body.dispatched()
            if not self._body.read:
                upload = loop.create_task(self._upload())
            outcome = await self._respond(upgrade)
            if upload is not None and not upload.done() and outcome is not Outcome.STALE:
                # Answered before the request was over: the rest of it is not wanted.
                outcome, self.upstream_reusable = Outcome.CLOSE, False
            return outcome
        except Broken:
            if self.client_fault is not None:  # it made us break the worker's connection
                raise self.client_fault from None
            raise
        finally:
            self._timer.cancel()
            if upload is not None:
                upload.cancel()
                await asyncio.wait([upload])

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        left = max(self._client.last_byte, self._upstream.last_byte) + IDLE_TIMEOUT - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._watch)
            return
        self.timed_out = True
        self._upstream.abort()
        if self.begun:
            self._client.abort()

    async def _upload(self) -> None:
        try:
            while not self._body.read:
                await self._upstream.send(await self._body.more())
                self._body.dispatched()
        except (Broken, BadMessage) as error:
            # A worker that stopped reading may have answered (413, 421): its answer decides.
            if isinstance(error, BadMessage) or error.side == self._client.side:
                self.client_fault = error
                self._upstream.abort()

    async def _respond(self, upgrade: bool) -> Outcome:
        client, upstream, version = self._client, self._upstream, self._request.version
        while True:
            head = await upstream.head()
            if head is None:
                raise Broken("worker")
            response = framing.parse_response(head)
            if response.status == 101 or response.status >= 200:
                break
            if version == b"HTTP/1.1":
                await client.send(headers.interim(response))
        if response.status == 421 and framing.values(response.headers, _STALE):
            return Outcome.STALE
        if response.status == 101:
            if not upgrade:
                raise BadMessage("the actor switched protocols unasked", 502)
            self.switched = response
            return Outcome.SWITCHED
        body = framing.response_body(response, self._request.method)
        payload: bytearray | None = None
        if isinstance(body, framing.ChunkedBody) and version == b"HTTP/1.0":
            payload = bytearray()
            body = framing.ChunkedBody(payload)
        keep = not body.ends_with_connection and payload is None and self._may_keep()
        self.begun = True
        data = headers.answered(response, keep=keep, version=version, dechunked=payload is not None)
        while True:
            if upstream.buffer and not body.done:
                piece = upstream.take(body)
                if payload is not None:
                    piece = bytes(payload)
                    payload.clear()
                data += piece
            if data:
                await client.send(data)
                data = b""
            if body.done or (not upstream.buffer and not await upstream.fill() and self._ended(body)):
                break
        self.upstream_reusable = not body.ends_with_connection and framing.keeps_alive(
            response.version, response.headers
        )
        return Outcome.KEEP if keep else Outcome.CLOSE

    def _ended(self, body: Body) -> bool:
        if not body.ends_with_connection:
            raise Broken("worker")
        return True
