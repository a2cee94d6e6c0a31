"""One request and its response, carried between the router's stream and the actor's, byte for byte where they may be.

Reads ahead into buffers that live as long as a stream (`Buffered`); knows upgrades and early responses; has no time
limit of its own. Used by `server.py` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import trio

from ate import http_framing as framing
from ate.half_close import end_sending, receive
from ate.http_framing import BadMessage, Body, RequestHead, ResponseHead


class Broken(Exception):
    """One side ended in the middle of a message: the other must not take what it got for complete."""

    def __init__(self, side: str, *, nothing_received: bool = False) -> None:
        super().__init__(f"the {side} ended in the middle of a message")
        self.side, self.nothing_received = side, nothing_received


class Buffered:
    """A stream with what was read from it and not yet used."""

    def __init__(self, stream: trio.abc.Stream, side: str) -> None:
        self.stream, self.side = stream, side
        self.buffer = bytearray()
        self.ended = False

    async def fill(self) -> bool:
        """Reads once; False at the end of the stream. Raises Broken when it was reset."""
        if self.ended:
            return False
        try:
            data = await receive(self.stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Broken(self.side) from error
        self.ended = not data
        self.buffer += data
        return not self.ended

    async def head(self) -> bytes | None:
        """The next message's head, or None if the stream ended before its first byte. Raises Broken, BadMessage."""
        while not (length := framing.find_head(self.buffer)):
            # A blank line before a request is allowed by the protocol and sent by some old clients.
            if self.buffer.startswith(b"\r\n"):
                del self.buffer[:2]
                continue
            if not await self.fill():
                if self.buffer:
                    raise Broken(self.side)
                return None
        head = bytes(self.buffer[:length])
        del self.buffer[:length]
        return head

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Broken(self.side) from error


async def carry(
    source: Buffered, sink: Buffered, body: Body, touch: Callable[[], None], *, chunk: bool = False
) -> None:
    """Passes one body on, in chunks of our own if told so.

    Raises Broken when the source ends early or a side breaks, BadMessage for bad framing.
    """
    while not body.done:
        if not source.buffer and not await source.fill():
            if body.ends_with_connection:
                if chunk:
                    await sink.send(b"0\r\n\r\n")
                return
            raise Broken(source.side)
        taken = body.take(source.buffer)
        touch()
        data = bytes(source.buffer[:taken])
        del source.buffer[:taken]
        if data:
            await sink.send(b"%x\r\n%b\r\n" % (len(data), data) if chunk else data)


def _for_router(head: bytes, response: ResponseHead, *, chunk: bool) -> bytes:
    """The actor's head as it came, less headers that only we may send (a stale assignment, say).

    A body that ends with its connection is announced as chunked: only then can the router tell its end from a break.
    """
    headers = framing.without(response.headers, (b"connection",) if chunk else (), b"x-ate-")
    if chunk:
        headers += ((b"Transfer-Encoding", b"chunked"),)
        response = replace(response, version=b"HTTP/1.1")
    return head if headers == response.headers else framing.encode_response(replace(response, headers=headers))


class Exchange:
    """Carries one request; after `run`, says whether either connection can be used again.

    `touch` is called for every piece that passes, `answered` when the final response begins.
    """

    def __init__(
        self, router: Buffered, actor: Buffered, touch: Callable[[], None], answered: Callable[[], None] = lambda: None
    ) -> None:
        self._router, self._actor, self._touch, self._answered = router, actor, touch, answered
        self.response_begun = False
        self.router_reusable = False
        self.actor_reusable = False

    async def run(self, request: RequestHead, body: Body) -> None:
        """Raises Broken or BadMessage; `response_begun` then says whether an error response is still possible."""
        try:
            await self._run(request, body)
        except BaseExceptionGroup as group:
            faults = [error for error in _leaves(group) if not isinstance(error, trio.Cancelled)]
            ours = [error for error in faults if isinstance(error, Broken | BadMessage)]
            if not faults or len(ours) != len(faults):
                raise
            # The router's own fault explains the other's: a request that broke off makes the actor end, too.
            raise next((e for e in ours if isinstance(e, Broken) and e.side == "router"), ours[0]) from group

    async def _run(self, request: RequestHead, body: Body) -> None:
        try:
            await self._actor.send(framing.encode_request(request))
        except Broken as error:
            raise Broken("actor", nothing_received=True) from error
        upload_done = body.done
        async with trio.open_nursery() as nursery:

            async def upload() -> None:
                nonlocal upload_done
                try:
                    await carry(self._router, self._actor, body, self._touch)
                    upload_done = True
                    # From here on only the router's leaving is news. (Another request sent ahead is kept for later.)
                    if not self._router.buffer and not await self._router.fill():
                        raise Broken(self._router.side)
                except Broken as error:
                    # The actor may have answered and closed before it read everything (413): its answer decides.
                    if error.side != self._actor.side:
                        raise

            nursery.start_soon(upload)
            response = await self._respond(request)
            nursery.cancel_scope.cancel()  # if it was an early final response, the rest of the request is not wanted
        if response.status == 101:
            await self._both_ways()
            return
        ended = isinstance(self._final_body, framing.EndlessBody)
        asked_to_keep = upload_done and framing.keeps_alive(request.version, request.headers)
        kept_by_actor = not ended and framing.keeps_alive(response.version, response.headers)
        # An answer that ends with its connection was sent on in chunks, so the router's connection can stay.
        self.router_reusable = asked_to_keep and (kept_by_actor or (ended and request.version == b"HTTP/1.1"))
        self.actor_reusable = asked_to_keep and kept_by_actor and not self._actor.buffer

    async def _respond(self, request: RequestHead) -> ResponseHead:
        while True:
            try:
                head = await self._actor.head()
            except Broken:
                head = None
            if head is None:
                raise Broken(self._actor.side, nothing_received=not self.response_begun and not self._actor.buffer)
            response = framing.parse_response(head)
            interim = 100 <= response.status < 200 and response.status != 101
            body = framing.LengthBody(0) if interim else framing.response_body(response, request.method)
            chunk = isinstance(body, framing.EndlessBody) and request.version == b"HTTP/1.1" and response.status != 101
            self._touch()
            self.response_begun = True
            if not interim:
                self._answered()
            await self._router.send(_for_router(head, response, chunk=chunk))
            if not interim:
                break
        self._final_body = body
        if response.status != 101:
            await carry(self._actor, self._router, body, self._touch, chunk=chunk)
        return response

    async def _both_ways(self) -> None:
        """After an upgrade: bytes both ways, each direction ending on its own, until both have ended."""
        async with trio.open_nursery() as nursery:

            async def one_way(source: Buffered, sink: Buffered) -> None:
                await carry(source, sink, framing.EndlessBody(), self._touch)
                await end_sending(sink.stream)

            nursery.start_soon(one_way, self._router, self._actor)
            nursery.start_soon(one_way, self._actor, self._router)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


__all__ = ["BadMessage", "Broken", "Buffered", "Exchange", "carry", "end_sending", "receive"]
