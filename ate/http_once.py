"""HTTP for small endpoints of ours: one request a connection, without a body, and one answer.

Used for metrics and probes, by the metadata endpoint in a worker, and for the broker's published keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

import trio

from ate import http_framing as framing
from ate.http_framing import BadMessage, Headers, RequestHead, ResponseHead

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Reply:
    """`headers` besides Content-Type, Content-Length and Connection."""

    status: int
    body: bytes
    kind: str = TEXT
    headers: Headers = ()


Answer = Callable[[RequestHead], Awaitable[Reply]]


class OneRequest:
    """A handler of streams; at most `at_once` requests are answered together, each within `timeout` seconds."""

    def __init__(self, answer: Answer, *, at_once: int = 32, timeout: float = 10.0) -> None:
        self._answer, self._timeout = answer, timeout
        self._room = trio.CapacityLimiter(at_once)

    async def __call__(self, stream: trio.abc.Stream) -> None:
        """Owns the stream. What `answer` raises is the caller's nursery's."""
        with trio.move_on_after(self._timeout):
            try:
                async with stream, self._room:
                    await stream.send_all(encode(await self._reply(stream)))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the client left

    async def _reply(self, stream: trio.abc.Stream) -> Reply:
        try:
            return await self._answer(await _head_of(stream))
        except BadMessage as bad:
            return Reply(bad.status, bad.reason.encode() + b"\n")


async def _head_of(stream: trio.abc.Stream) -> RequestHead:
    buffer = bytearray()
    while not (end := framing.find_head(buffer)):
        more = await stream.receive_some(4096)
        if not more:
            raise BadMessage("the request ended early")
        buffer += more
    return framing.parse_request(bytes(buffer[:end]))


def encode(reply: Reply) -> bytes:
    headers = (
        (b"Content-Type", reply.kind.encode()),
        (b"Content-Length", b"%d" % len(reply.body)),
        *reply.headers,
        (b"Connection", b"close"),
    )
    reason = HTTPStatus(reply.status).phrase.encode()
    return framing.encode_response(ResponseHead(b"HTTP/1.1", reply.status, reason, headers)) + reply.body
