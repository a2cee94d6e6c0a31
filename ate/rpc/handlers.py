"""How a service's methods are written: `@unary` and `@server_streaming` over the generated `XBase` classes.

They turn `async def GetActor(self, request, call)` into the grpclib-style handler that `Server` looks up. Methods with
a stream of requests are written in grpclib's own style, `async def Upload(self, stream)`.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from ate.errors import InvalidArgument
from ate.rpc.call import Call, ServerStream

if TYPE_CHECKING:
    import grpclib.server

Service = TypeVar("Service")
Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Interceptor(Protocol):
    """Wraps every call of a server, outermost first. It may raise an AteError instead of awaiting `proceed()`."""

    async def __call__(self, call: Call, proceed: Callable[[], Awaitable[None]]) -> None: ...


def unary(
    method: Callable[[Service, Request, Call], Awaitable[Reply]],
) -> Callable[[Service, grpclib.server.Stream[Request, Reply]], Coroutine[Any, Any, None]]:
    """A method with one request and one reply."""

    @functools.wraps(method)
    async def handler(self: Service, stream: grpclib.server.Stream[Request, Reply]) -> None:
        ours = cast(ServerStream, stream)
        reply = await method(self, await _request(ours), ours.call)
        await ours.send_message(reply)

    return handler


def server_streaming(
    method: Callable[[Service, Request, Call], Awaitable[None]],
) -> Callable[[Service, grpclib.server.Stream[Request, Any]], Coroutine[Any, Any, None]]:
    """A method with one request whose replies go out by `await call.send(message)`."""

    @functools.wraps(method)
    async def handler(self: Service, stream: grpclib.server.Stream[Request, Any]) -> None:
        ours = cast(ServerStream, stream)
        await method(self, await _request(ours), ours.call)

    return handler


async def _request(stream: ServerStream) -> Any:
    request = await stream.recv_message()
    if request is None:
        raise InvalidArgument(f"{stream.call.method} was called without a request message")
    return request
