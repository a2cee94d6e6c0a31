"""One request and its response, carried between the router's stream and the actor's, byte for byte where they may be.

Reads ahead into buffers that live as long as a stream (`Buffered`); knows upgrades and early responses; has no time
limit of its own. Used by `server.py` only.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator

import trio

from ate.node.tunnel import framing
from ate.node.tunnel.framing import BadMessage, Body, RequestHead, ResponseHead

CHUNK = 64 * 1024


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


async def carry(source: Buffered, sink: Buffered, body: Body, touch: Callable[[], None]) -> None:
    """Passes one body on. Raises Broken when the source ends early or a side breaks, BadMessage for bad framing."""
    while not body.done:
        if not source.buffer and not await source.fill():
            if body.ends_with_connection:
                return
            raise Broken(source.side)
        taken = body.take(source.buffer)
        touch()
        data = bytes(source.buffer[:taken])
        del source.buffer[:taken]
        if data:
            await sink.send(data)


class Exchange:
    """Carries one request; after `run`, says whether either connection can be used again."""

    def __init__(self, router: Buffered, actor: Buffered, touch: Callable[[], None]) -> None:
        self._router, self._actor, self._touch = router, actor, touch
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
                except Broken as error:
                    # The actor may have answered and closed before it read everything (413): its answer decides.
                    if error.side != self._actor.side:
                        raise

            if not body.done:
                nursery.start_soon(upload)
            response = await self._respond(request)
            if response.status == 101:
                nursery.cancel_scope.cancel()
            elif not upload_done:
                nursery.cancel_scope.cancel()  # an early final response: the rest of the request is not wanted
        if response.status == 101:
            await self._both_ways()
            return
        ended = isinstance(self._final_body, framing.EndlessBody)
        self.router_reusable = (
            upload_done
            and not ended
            and framing.keeps_alive(request.version, request.headers)
            and framing.keeps_alive(response.version, response.headers)
        )
        self.actor_reusable = self.router_reusable and not self._actor.buffer

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
            self._touch()
            self.response_begun = True
            await self._router.send(head)
            if not interim:
                break
        self._final_body = body
        if response.status != 101:
            await carry(self._actor, self._router, body, self._touch)
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


async def receive(stream: trio.abc.Stream) -> bytes:
    """Reads once, b"" at the end; also after `end_sending`, when ssl reports the peer's goodbye as an error."""
    try:
        return bytes(await stream.receive_some(CHUNK))
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLZeroReturnError):
            return b""
        raise


async def end_sending(stream: trio.abc.Stream) -> None:
    """Tells the peer that no more comes, while it may go on sending: FIN on TCP, close_notify on TLS."""
    try:
        if isinstance(stream, trio.SSLStream):
            # trio's `unwrap` would also wait for the peer's close_notify and forbid further reading meanwhile.
            ssl_object, outgoing = stream._ssl_object, stream._outgoing
            try:
                ssl_object.unwrap()
            except Exception:
                pass
            pending = outgoing.read()
            if pending:
                await stream.transport_stream.send_all(pending)
        elif isinstance(stream, trio.abc.HalfCloseableStream):
            await stream.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the peer is gone altogether; reading from it will say so


__all__ = ["BadMessage", "Broken", "Buffered", "Exchange", "carry", "end_sending"]
